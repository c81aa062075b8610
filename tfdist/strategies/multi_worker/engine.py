"""The engine for several processes that TensorFlow's collective operations connect."""

from __future__ import annotations

import tensorflow as tf

from tfdist.compat.exchange_of_rows import all_to_all
from tfdist.engines.replica_context import ReplicaContextEngine, static_id


class CollectivesEngine(ReplicaContextEngine):
    """TensorFlow's collective operations over gRPC or NCCL.

    TensorFlow also has `CollectiveReduceScatterV2`, but this operation fails on CPUs (TensorFlow
    2.21). So `reduce_scatter` is inherited: each replica gets its parts from the others and adds
    them up.
    """

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this replica, in one operation."""
        if self.replicas == 1:
            return rows
        strategy = tf.distribute.get_strategy()
        return tf.ensure_shape(all_to_all(strategy, static_id(), rows), rows.shape)
