"""Where a global batch is cut into the parts of the replicas."""

from __future__ import annotations

import tensorflow as tf

from tfdist.data import batches
from tfdist.structures import Structure


def bounds(ends: tf.Tensor, size: int | tf.Tensor) -> tf.Tensor:
    """The first sample of each replica's part, and at last the number of samples.

    If there are enough samples, every replica gets at least one. So all speeds stay known.

    Args:
        ends: float64 of shape `[replicas + 1]`: 0, and the sums of the shares up to each replica.
        size: the number of samples in the batch.

    Returns:
        int64 of shape `[replicas + 1]`, the same on all replicas for the same arguments.
    """
    size = tf.cast(size, tf.int64)
    replicas = ends.shape[0] - 1
    least = tf.range(replicas + 1, dtype=tf.int64) * tf.cast(size >= replicas, tf.int64)
    raised = tf.cast(tf.round(ends * tf.cast(size, tf.float64)), tf.int64) - least
    up_to = tf.linalg.band_part(tf.ones([replicas + 1, replicas + 1], tf.int64), -1, 0)
    rising = tf.reduce_max(raised[None, :] * up_to, axis=1)
    return tf.minimum(rising, size - least[-1]) + least


def part(batch: Structure, bounds: tf.Tensor, replica_id: int) -> Structure:
    """The samples of `batch` that belong to a replica; cut on the host, where the batch is.

    Args:
        batch: a structure of tensors whose first dimension is the batch. Other values are returned
            as they are.
        bounds: of the parts, as `bounds` returns them.
        replica_id: the replica.
    """
    with tf.device("CPU:0"):
        return batches.cut(batch, bounds[replica_id], bounds[replica_id + 1])
