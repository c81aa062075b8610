"""Where a global batch is cut into the parts of the replicas."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfdist.data import batches
from tfdist.step.weighting import Share, batch_size, even_share, share_of
from tfdist.structures import Structure


def bounds(ends: tf.Tensor, size: int | tf.Tensor, *, skips: bool = False) -> tf.Tensor:
    """The first sample of each replica's part, and at last the number of samples.

    If there are enough samples, every replica gets at least one. So all speeds stay known.

    Args:
        ends: float64 of shape `[replicas + 1]`: 0, and the sums of the shares up to each replica.
        size: the number of samples in the batch.
        skips: whether replicas with the share 0 get no sample.

    Returns:
        int64 of shape `[replicas + 1]`, the same on all replicas for the same arguments.
    """
    size = tf.cast(size, tf.int64)
    replicas = ends.shape[0] - 1
    least = tf.range(replicas + 1, dtype=tf.int64)
    if skips:
        takes = tf.cast(ends[1:] > ends[:-1], tf.int64)
        least = tf.concat([least[:1], tf.cumsum(takes)], axis=0)
    least *= tf.cast(size >= least[-1], tf.int64)
    raised = tf.cast(tf.round(ends * tf.cast(size, tf.float64)), tf.int64) - least
    up_to = tf.linalg.band_part(tf.ones([replicas + 1, replicas + 1], tf.int64), -1, 0)
    rising = tf.reduce_max(raised[None, :] * up_to, axis=1)
    return tf.minimum(rising, size - least[-1]) + least


@dataclasses.dataclass(frozen=True)
class Part:
    """A replica's part of a global batch.

    Attributes:
        batch: its samples, in the structure of the global batch.
        share: its share of the global batch.
        sizes: int64 of shape `[replicas]`, the numbers of samples of all parts. None for a batch
            without samples to count, such as one of scalars.
    """

    batch: Structure
    share: Share
    sizes: tf.Tensor | None = None

    def samples_of(self, replica_id: int) -> tf.Tensor:
        """How many samples a replica has, int64; a batch without samples to count is one."""
        return tf.ones([], tf.int64) if self.sizes is None else self.sizes[replica_id]


def part_of(batch: Structure, ends: tf.Tensor, replica_id: int, *, skips: bool = False) -> Part:
    """Cuts a replica's part out of a global batch, on the host, where the batch is.

    Args:
        batch: a structure of tensors whose first dimension is the batch. Other values are in every
            part as they are.
        ends: as for `bounds`.
        replica_id: the replica.
        skips: as for `bounds`.
    """
    with tf.device("CPU:0"):
        size = batch_size(batch)
        if size is None:
            return Part(batch, even_share(ends.shape[0] - 1))
        cuts = bounds(ends, size, skips=skips)
        start, stop = cuts[replica_id], cuts[replica_id + 1]
        share = share_of(stop - start, cuts[-1])
        return Part(batches.cut(batch, start, stop), share, cuts[1:] - cuts[:-1])
