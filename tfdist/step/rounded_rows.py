"""Rows of sparse gradients, as they travel: as they are, or rounded by a compressor.

A compressor with `codes_rows` rounds each number by itself, so it can round rows too, of which
there may be another number in each step.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import tensorflow as tf

from tfdist.compression.base import Compressor, Step, nbytes
from tfdist.step.tables import Tables
from tfdist.structures import Structure

AllReduce = Callable[[list], list]

# Bytes of the number of a row, in the gradients of Keras' layers.
INDEX_BYTES = 4


def coder_of(compressor: Compressor | None) -> Compressor | None:
    """What rounds the rows of a variable with this compressor; None if they travel as they are.

    With error feedback they do: nothing would keep what was rounded away.
    """
    if compressor is None or compressor.error_feedback or not compressor.codes_rows:
        return None
    return compressor


@dataclasses.dataclass(frozen=True)
class RowCoder:
    """What rounds the rows of a sparse gradient, from the update `compressor.start_step` on.

    Attributes:
        compressor: as from `coder_of`.
        number: int64 scalar, the number of updates so far.
    """

    compressor: Compressor
    number: Structure


def row_bytes(
    spec: tf.TensorSpec, coder: Compressor | None = None, index_bytes: int = INDEX_BYTES
) -> int:
    """What a row takes, with its number.

    Args:
        spec: the shape and dtype of the table.
        coder: what rounds it; None if it travels as it is.
        index_bytes: what its number takes.
    """
    row = tf.TensorSpec([1, *spec.shape[1:]], spec.dtype)
    return index_bytes + (nbytes(row) if coder is None else coder.wire_bytes(row))


def table_bytes(spec: tf.TensorSpec, tables: Tables) -> int:
    """What a table takes that travels in place of rows.

    Args:
        spec: the shape and dtype of the variable.
        tables: what the table holds; not `NONE`.
    """
    width = math.prod(spec.shape[1:])
    return spec.shape[0] * tables.row_bytes(width, spec.dtype.size)


def table_is_smaller(
    spec: tf.TensorSpec,
    rows: Structure,
    tables: Tables,
    coder: Compressor | None = None,
    index_bytes: int = INDEX_BYTES,
) -> Structure:
    """Whether the table's sum takes fewer bytes than to gather rows. A table is not rounded.

    Args:
        spec: as for `row_bytes`.
        rows: the number of rows of all replicas together.
        tables: as for `table_bytes`.
        coder: as for `row_bytes`.
        index_bytes: as for `row_bytes`.
    """
    return rows * row_bytes(spec, coder, index_bytes) > 2 * table_bytes(spec, tables)


def joined(
    rows: tf.IndexedSlices, coder: Compressor | None, all_reduce: AllReduce
) -> tf.IndexedSlices:
    """The rows of all replicas, in the dtype of the replica's own.

    Args:
        rows: the replica's own.
        coder: what rounds them; None if they travel as they are.
        all_reduce: joins sparse values.
    """
    if coder is None:
        return all_reduce([rows])[0]
    seed = tf.zeros([2], tf.int32)
    # No sum is rounded, so numbers may be as large as with one replica.
    payload, _ = coder.encode(tf.cast(rows.values, tf.float32), {}, Step(seed, seed, replicas=1))
    (coded,) = payload
    # Engines carry half precision, but not bfloat16. Nothing is computed with these bits.
    is_foreign = coded.dtype == tf.bfloat16
    sent = tf.bitcast(coded, tf.float16) if is_foreign else coded
    (found,) = all_reduce([tf.IndexedSlices(sent, rows.indices, rows.dense_shape)])
    received = tf.bitcast(found.values, tf.bfloat16) if is_foreign else found.values
    spec = tf.TensorSpec(received.shape, rows.values.dtype)
    return tf.IndexedSlices(coder.decode((received,), spec), found.indices, rows.dense_shape)
