"""The shares of a strategy's replicas: what they are, and what the last steps say about them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tfdist.balance import policy
from tfdist.balance.policy import STEPS
from tfdist.engines.current import current
from tfdist.step.replica import ReplicaStep

_SHORTEST = 1e-6  # seconds
_PARTED = (
    "The replicas have cut a global batch in different places, so that samples were lost or were "
    "trained on twice; train without `balance=True`, and report this. Received by replica, samples:"
)


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
        with tf.device("CPU:0"):
            self._ends = tf.Variable(_ends(self.shares), trainable=False, shape=[None])
            speeds = tf.zeros([STEPS, replicas])
            self._speeds = tf.Variable(speeds, trainable=False, shape=[STEPS, None])

    def ends(self) -> tf.Tensor:
        """The sums of the shares for one step: float64 of shape `[replicas + 1]`.

        Called once in a step and process, outside of replicas: all of them must cut alike.
        """
        with tf.device("CPU:0"):
            return tf.ensure_shape(self._ends.read_value(), [len(self.shares) + 1])

    def speeds(self, step: ReplicaStep, sizes: tf.Tensor, seconds: tf.Tensor) -> tf.Tensor:
        """The samples per second of all replicas, the same on all; in replica context.

        The replicas also exchange how many samples they had. If they have not all cut alike, the
        step fails.

        Args:
            step: the step that this replica runs.
            sizes: the numbers of samples of all parts, as this replica has cut them.
            seconds: for how long this replica has computed, float64.
        """
        seconds = tf.maximum(seconds, _SHORTEST)
        expected = tf.cast(sizes, tf.float32)
        samples = expected[step.replica_id]
        own = tf.stack([samples / tf.cast(seconds, tf.float32), samples])
        own = tf.one_hot(step.replica_id, step.replicas) * own[:, None]
        (found,) = current().all_reduce([own])
        alike = tf.debugging.Assert(tf.reduce_all(found[1] == expected), [_PARTED, found[1]])
        with tf.control_dependencies([] if alike is None else [alike]):
            return tf.identity(found[0])

    def note(self, speeds: tf.Tensor) -> None:
        """Notes what a step has measured; called once in each process, outside of replicas."""
        self._speeds.assign(tf.concat([self._speeds[1:], speeds[None, :]], axis=0))

    def adjust(self) -> None:
        """Gives the replicas other shares if that is worthwhile; called after a step."""
        measured = self._measured()
        if not measured.any(axis=1).all():
            return  # too few steps since the shares have moved
        new = policy.new_shares(measured, self.shares, self._max_share)
        if new is not None:
            self.move(new)

    def begin_anew(self, replicas: int) -> None:
        """Gives all replicas even parts; called in all processes when others are in the group.

        Steps must be traced anew then.

        Args:
            replicas: the number of replicas.
        """
        self.move(np.full(replicas, 1 / replicas))

    def move(self, shares: np.ndarray) -> None:
        """Gives the replicas other shares from the next step on; the same in all processes.

        What was measured is forgotten.
        """
        self.shares = shares
        self._ends.assign(_ends(shares))
        self._speeds.assign(tf.zeros([STEPS, len(shares)]))

    def speeds_of_last_steps(self) -> np.ndarray:
        """Samples per second: float64 of shape `[replicas]`, 0 where nothing is known."""
        return policy.median_speeds(self._measured())

    def _measured(self) -> np.ndarray:
        return self._speeds.numpy().astype(np.float64)


def _ends(shares: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum(shares)[:-1], [1.0]])
