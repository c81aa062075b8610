"""The engine for several processes that TensorFlow's collective operations connect."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.engines.contract import Value
from tfdist.engines.halves import sum_of_rows, with_sums_of_halves
from tfdist.engines.replica_context import ReplicaContextEngine, static_id


class CollectivesEngine(ReplicaContextEngine):
    """TensorFlow's collective operations over gRPC or NCCL.

    TensorFlow also has `CollectiveReduceScatterV2`, but this operation fails on CPUs (TensorFlow
    2.21). So each replica gets its parts from the others and adds them up.
    """

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums; of half precision, with more than two replicas, in float32.

        TensorFlow's gather crashes if no replica has rows, so one without rows sends a row of
        zeros.
        """
        if self.replicas == 1:
            return list(values)
        some = [_with_a_row(v) if isinstance(v, tf.IndexedSlices) else v for v in values]
        return with_sums_of_halves(self, some, super().all_reduce)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this replica, in one operation."""
        if self.replicas == 1:
            return rows
        strategy = tf.distribute.get_strategy()
        return tf.ensure_shape(compat.all_to_all(strategy, static_id(), rows), rows.shape)

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This replica's part of the sum. Half precision is summed in float32."""
        if self.replicas == 1:
            return vector
        return sum_of_rows(self.all_to_all(tf.reshape(vector, [self.replicas, -1])))


def _with_a_row(rows: tf.IndexedSlices) -> tf.IndexedSlices:
    """The rows; a row of zeros, which adds nothing, if there are none."""
    missing = tf.cast(tf.equal(tf.size(rows.indices), 0), tf.int32)
    values = tf.pad(rows.values, [[0, missing], *[[0, 0]] * (rows.values.shape.rank - 1)])
    return tf.IndexedSlices(values, tf.pad(rows.indices, [[0, missing]]), rows.dense_shape)
