"""The two exchanges of a sharded update: parts of sums, and whole variables from their parts."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import tensorflow as tf

from tfdist.engines.contract import Engine
from tfdist.engines.current import current
from tfdist.step.exchange import enough, plan_buckets
from tfdist.step.sharding.parts import Parts
from tfdist.step.spans import timed


def reduce_scatter(
    tensors: Sequence[tf.Tensor], parts: Sequence[Parts], bucket_bytes: int
) -> list[tf.Tensor]:
    """This replica's parts of the sums over the replicas; in replica context.

    The last tensors come first, as a backward pass begins with the last layers.

    Args:
        tensors: whole ones, of the same shapes on every replica.
        parts: how each of them is divided.
        bucket_bytes: upper bound of the tensors that one operation carries together.
    """
    engine = current()
    found: dict[int, tf.Tensor] = {}

    def sums_of_parts(table: tf.Tensor) -> tf.Tensor:
        pieces = _cut(table, engine.replicas, engine)
        return _joined([engine.reduce_scatter(tf.reshape(piece, [-1])) for piece in pieces])

    for number, places in reversed(list(enumerate(_buckets(parts, bucket_bytes)))):
        divided = [parts[p].divided(tensors[p]) for p in places]
        table = divided[0] if len(divided) == 1 else tf.concat(divided, axis=1)
        own = timed(f"reduce-scatter {number}", table, functools.partial(sums_of_parts, table))
        found.update(_split(own, places, parts))
    return [found[place] for place in range(len(parts))]


def all_gather(
    tensors: Sequence[tf.Tensor], parts: Sequence[Parts], bucket_bytes: int, in_turn: bool = False
) -> list[tf.Tensor]:
    """Whole tensors from the parts of all replicas; in replica context.

    Args:
        tensors: this replica's parts.
        parts: how the whole tensors are divided.
        bucket_bytes: upper bound of the whole tensors that one operation carries together.
        in_turn: as for `Engine.all_gather_parts`.
    """
    engine = current()
    found: dict[int, tf.Tensor] = {}

    def parts_of_all(row: tf.Tensor) -> tf.Tensor:
        gather = functools.partial(engine.all_gather_parts, in_turn=in_turn)
        pieces = map(gather, _cut(row, engine.replicas, engine))
        return _joined([tf.reshape(piece, [engine.replicas, -1]) for piece in pieces])

    for number, places in reversed(list(enumerate(_buckets(parts, bucket_bytes)))):
        flat = [tf.reshape(tensors[p], [parts[p].length]) for p in places]
        row = flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)
        table = timed(f"all-gather {number}", row, functools.partial(parts_of_all, row))
        for place, rows in zip(places, tf.split(table, [parts[p].length for p in places], axis=1)):
            found[place] = parts[place].joined(rows)
    return [found[place] for place in range(len(parts))]


def _buckets(parts: Sequence[Parts], bucket_bytes: int) -> list[list[int]]:
    """The positions of tensors that travel together."""
    specs = [tf.TensorSpec([p.replicas * p.length], p.dtype) for p in parts]
    total = sum(spec.shape[0] * spec.dtype.size for spec in specs)
    buckets = plan_buckets(specs, enough(total, bucket_bytes))
    return [list(bucket.indices) for bucket in buckets]


def _cut(tensor: tf.Tensor, replicas: int, engine: Engine) -> list[tf.Tensor]:
    """Pieces along the last axis, so that no operation carries more than the engine's largest."""
    length = tensor.shape[-1]
    if engine.largest_message is None:
        return [tensor]
    most = max(1, engine.largest_message // (replicas * tensor.dtype.size))
    if length <= most:
        return [tensor]
    count = math.ceil(length / most)
    widths = [length // count + (number < length % count) for number in range(count)]
    return tf.split(tensor, widths, axis=-1)


def _joined(pieces: list[tf.Tensor]) -> tf.Tensor:
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=-1)


def _split(row: tf.Tensor, places: list[int], parts: Sequence[Parts]) -> dict[int, tf.Tensor]:
    lengths = [parts[place].length for place in places]
    pieces = [row] if len(places) == 1 else tf.split(row, lengths)
    return {p: tf.reshape(piece, parts[p].part_shape) for p, piece in zip(places, pieces)}
