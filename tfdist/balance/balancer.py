"""The shares of a strategy's replicas: what they are, and what the last steps say about them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.balance import parts, policy
from tfdist.balance.policy import STEPS
from tfdist.engines.current import current
from tfdist.step.replica import ReplicaStep
from tfdist.step.weighting import Share, batch_size, share_of
from tfdist.structures import Structure

_SHORTEST = 1e-6  # seconds


class Balancer:
    """Cuts global batches by the speeds of the replicas.

    Every process has the same shares at the same step: they come from numbers that the replicas
    exchange in each step, so that all processes decide the same.

    Args:
        replicas: the number of replicas.
        max_share: the largest share that a replica may have; None for no bound.

    Attributes:
        shares: float64 of shape `[replicas]`, with the sum 1.
    """

    def __init__(self, replicas: int, max_share: float | None):
        self.shares = np.full(replicas, 1 / replicas)
        self._max_share = max_share
        self._since = 0
        with tf.device("CPU:0"):
            self._ends = tf.Variable(_ends(self.shares), trainable=False)
            self._speeds = tf.Variable(tf.zeros([STEPS, replicas]), trainable=False)
            self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)

    def part(self, batch: Structure, replica_id: int) -> tuple[Structure, Share, tf.Tensor | None]:
        """A replica's part of a global batch, its share, and its number of samples.

        The number is None for a batch without samples to count.
        """
        size = batch_size(batch)
        if size is None:
            return batch, Share(1.0 / len(self.shares)), None
        bounds = parts.bounds(self._ends.read_value(), size)
        samples = bounds[replica_id + 1] - bounds[replica_id]
        share = share_of(samples, bounds[-1])
        return parts.part(batch, bounds, replica_id), share, samples

    def speeds(self, step: ReplicaStep, samples: tf.Tensor, begun: tf.Tensor) -> tf.Tensor:
        """The samples per second of all replicas, the same on all; in replica context.

        A replica's time ends when its gradients are computed: it has not waited for others then.

        Args:
            step: the step that this replica runs.
            samples: how many samples it had.
            begun: the time at which it began.
        """
        with tf.control_dependencies(step.notes.computed):
            seconds = tf.maximum(tf.timestamp() - begun, _SHORTEST)
        speed = tf.cast(tf.cast(samples, tf.float64) / seconds, tf.float32)
        own = tf.one_hot(step.replica_id, step.replicas) * speed
        (speeds,) = current().all_reduce([own])
        return speeds

    def note(self, speeds: tf.Tensor) -> None:
        """Notes what a step has measured; called once in each process, outside of replicas."""
        self._speeds.assign(tf.concat([self._speeds[1:], speeds[None, :]], axis=0))
        self._steps.assign_add(1)

    def adjust(self) -> None:
        """Gives the replicas other shares if that is worthwhile; called after a step."""
        steps = int(self._steps.numpy())
        if steps - self._since < STEPS:
            return
        new = policy.new_shares(self._measured(), self.shares, self._max_share)
        if new is not None:
            self.move(new)
            self._since = steps

    def move(self, shares: np.ndarray) -> None:
        """Gives the replicas other shares from the next step on; the same in all processes."""
        self.shares = shares
        self._ends.assign(_ends(shares))

    def speeds_of_last_steps(self) -> np.ndarray:
        """Samples per second: float64 of shape `[replicas]`, 0 where nothing is known."""
        return policy.median_speeds(self._measured())

    def _measured(self) -> np.ndarray:
        return self._speeds.numpy().astype(np.float64)


def _ends(shares: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(shares)[:-1], [1.0]])
