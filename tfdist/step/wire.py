"""How payloads travel: many tensors in few collective operations, without any rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from tfdist.compression.base import nbytes
from tfdist.engines.current import current, own_number
from tfdist.engines.words import WORD, as_words, bytes_of
from tfdist.step.exchange import Packing, all_reduce, enough, plan_buckets


def sum_over_replicas(tensors: Sequence[tf.Tensor], bucket_bytes: int) -> list[tf.Tensor]:
    """The sum over the replicas of each of `tensors`; called in replica context.

    With two replicas, each sends its half-precision tensors whole to the other, and the sum is
    computed in float32. So no sum is rounded, and the traffic is no more than for summing.

    Args:
        tensors: of static shapes, which are the same on every replica.
        bucket_bytes: upper bound in bytes for several tensors that travel together.
    """
    replicas = current().replicas
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    bound = enough(sum(map(nbytes, specs)), bucket_bytes)
    sums: list = [None] * len(tensors)
    others = list(tensors)
    for bucket in reversed(plan_buckets(specs, bound)):
        if bucket.dtype == tf.float16 and replicas == 2:
            rows = gather_from_replicas([tensors[i] for i in bucket.indices])
            for index, both in zip(bucket.indices, rows):
                sums[index] = tf.reduce_sum(tf.cast(both, tf.float32), axis=0)
                others[index] = None
    packing = Packing(others, specs, bound)
    totals = packing.unpack(packing.sum(packing.pack(others)))
    return [total if own is None else own for own, total in zip(sums, totals)]


def gather_from_replicas(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """All replicas' `tensors`, stacked along a new first axis; called in replica context.

    All of them travel as one vector of bytes, in pieces of the engine's largest message.

    Args:
        tensors: of static shapes, which are the same on every replica.
    """
    if not tensors:
        return []
    gathered = _gather_bytes(tf.concat([bytes_of(tensor) for tensor in tensors], axis=0))
    sizes = [math.prod(tensor.shape) * tensor.dtype.size for tensor in tensors]
    parts = tf.split(gathered, sizes, axis=1)
    return [_from_bytes(part, tensor) for part, tensor in zip(parts, tensors)]


def _gather_bytes(encoded: tf.Tensor) -> tf.Tensor:
    """A vector of bytes from each replica, as rows."""
    replicas, size = current().replicas, encoded.shape[0]
    if replicas == 1 or size == 0:
        return tf.tile(encoded[None], [replicas, 1])
    vector = as_words(encoded)
    words = vector.shape[0]
    gather = _gather_of_two if replicas == 2 else _gather
    rows = tf.ensure_shape(gather(vector), [replicas, words])
    return tf.reshape(tf.bitcast(rows, tf.uint8), [replicas, WORD * words])[:, :size]


def _gather_of_two(vector: tf.Tensor) -> tf.Tensor:
    """Both replicas' vectors as rows: the sum minus one's own vector is the other's vector.

    A sum is as much traffic as a gather, and engines sum faster: between two ranks, Gloo's gather
    sends in one direction at a time. Sums that overflow wrap around, and so do differences.
    """
    (total,) = all_reduce([vector])
    other = total - vector
    first = own_number() == 0
    return tf.stack([tf.where(first, vector, other), tf.where(first, other, vector)])


def _gather(vector: tf.Tensor) -> tf.Tensor:
    """All replicas' vectors as rows, in pieces of the engine's largest message."""
    engine, words = current(), vector.shape[0]
    largest = engine.largest_message
    most = words if largest is None else max(1, largest // WORD)
    lengths = [most] * (words // most) + [words % most] * (words % most > 0)
    return tf.concat([engine.all_gather(p[None]) for p in tf.split(vector, lengths)], axis=1)


def _from_bytes(rows: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    shape = [rows.shape[0], *like.shape]
    if like.dtype.size > 1:
        shape.append(like.dtype.size)
    return tf.bitcast(tf.reshape(rows, shape), like.dtype)
