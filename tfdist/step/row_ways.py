"""How the rows of a sparse gradient travel: as they are, or rounded by a compressor.

A compressor with `codes_rows` rounds each number by itself, so it can round rows too, of which
there may be another number in each step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import tensorflow as tf

from tfdist.compression.base import Compressor, Step, nbytes
from tfdist.compression.none import Uncompressed
from tfdist.engines.current import current
from tfdist.structures import Structure

AllReduce = Callable[[list], list]

# Bytes of the number of a row.
INDEX_BYTES = 8


def of_rows(compressor: Compressor | None) -> Compressor | None:
    """What rounds the rows of a variable with this compressor; None if they travel as they are.

    With error feedback they do: nothing would keep what was rounded away.
    """
    if compressor is None or compressor.error_feedback or not compressor.codes_rows:
        return None
    return compressor


@dataclasses.dataclass(frozen=True)
class RowCoder:
    """What rounds the rows of a sparse gradient, and from which update on.

    Attributes:
        compressor: as from `of_rows`.
        number: int64 scalar, the number of updates so far.
    """

    compressor: Compressor
    number: Structure


@dataclasses.dataclass(frozen=True)
class Way:
    """How rows and tables travel between replicas.

    Attributes:
        all_reduce: sums dense tensors, and joins sparse ones.
        compressor: what rounds them.
    """

    all_reduce: AllReduce
    compressor: Compressor = dataclasses.field(default_factory=Uncompressed)

    @property
    def _rounds_sums(self) -> bool:
        return self.compressor.aggregation == "sum"

    def row_bytes(self, spec: tf.TensorSpec) -> int:
        """What a row of a table of this shape and dtype takes, with its number."""
        row = tf.TensorSpec([1, *spec.shape[1:]], spec.dtype)
        return self.compressor.wire_bytes(row) + INDEX_BYTES

    def table_bytes(self, spec: tf.TensorSpec) -> int:
        """What a table of this shape and dtype takes."""
        return self.compressor.wire_bytes(spec) if self._rounds_sums else nbytes(spec)

    def table_is_smaller(self, spec: tf.TensorSpec, rows: Structure) -> Structure:
        """Whether the table's sum takes fewer bytes than to gather so many rows.

        Args:
            spec: the shape and dtype of the table.
            rows: the number of rows of all replicas together.
        """
        return rows * self.row_bytes(spec) > 2 * self.table_bytes(spec)

    def joined(self, rows: tf.IndexedSlices) -> tf.IndexedSlices:
        """The rows of all replicas."""
        coded = self._encoded(rows.values)
        # Engines carry half precision, but not bfloat16. Nothing is computed with these bits.
        is_foreign = coded.dtype == tf.bfloat16
        sent = tf.bitcast(coded, tf.float16) if is_foreign else coded
        (found,) = self.all_reduce([tf.IndexedSlices(sent, rows.indices, rows.dense_shape)])
        received = tf.bitcast(found.values, tf.bfloat16) if is_foreign else found.values
        values = self._decoded(received, rows.values.dtype)
        return tf.IndexedSlices(values, found.indices, rows.dense_shape)

    def sum(self, values: tf.Tensor) -> tf.Tensor:
        """The sum over the replicas of a vector, rounded if the compressor's sums are."""
        if not self._rounds_sums:
            return self.all_reduce([values])[0]
        (total,) = self.all_reduce([self._encoded(values)])
        return self._decoded(total, values.dtype)

    def _encoded(self, values: tf.Tensor) -> tf.Tensor:
        seed = tf.zeros([2], tf.int32)
        (coded,), _ = self.compressor.encode(values, {}, Step(seed, seed, current().replicas))
        return coded

    def _decoded(self, coded: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
        return self.compressor.decode((coded,), tf.TensorSpec(coded.shape, dtype))
