"""Rounds that last a time: what is measured in a round, and the plan of the next one."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfdist.engines.current import own_number
from tfdist.local.by_time import Measured, Plan, Planner
from tfdist.step import exchange
from tfdist.step.local_context import index_of_replica
from tfdist.step.local_state import LocalState
from tfdist.step.spans import EXCHANGE_OF_ROUND, timed

# Numbers of a replica: samples, seconds of its steps, begin and end of its steps.
_OWN = 4
# Numbers that it tells the others: samples, seconds of its steps, from their begin to their end,
# and how many updates it has made.
_TOLD = 4


class Pace:
    """What the processes of a strategy have planned for this round, and measure in it.

    What is measured travels where a round ends: four numbers of each replica. The next plan follows
    from them, so it is the same in all processes. It begins with the next call of `keep`.

    Args:
        seconds: how long a round is to last.
        processes: the number of processes.
        local_replicas: the number of replicas in each process.

    Attributes:
        plan: the plan of the round.
        updates: after how many updates the round ends, int64.
    """

    def __init__(self, seconds: float, processes: int, local_replicas: int):
        self._seconds, self._processes = seconds, processes
        self._local = local_replicas
        replicas = processes * local_replicas
        with tf.device("CPU:0"):
            self.updates = _variable(tf.int64)
            self._turn = _variable(tf.int64)
            self._ends = tf.Variable(
                tf.zeros([1, replicas + 1], tf.float64),
                trainable=False,
                shape=[None, replicas + 1],
            )
            self._own = [_variable(tf.float64, [_OWN]) for _ in range(local_replicas)]
            self._told = _variable(tf.float32, [replicas, _TOLD])
            self._lengths = _variable(tf.int64, [2])  # updates and steps of the last round
            self._rounds = _variable(tf.int64)
            self._made = _variable(tf.float64, [replicas])
        self._planner = Planner(seconds, processes)
        self._planned_after = self._counted = 0
        self.plan = self._take(self._planner.first())

    # --- in steps -----------------------------------------------------------------------------

    def ends(self) -> tf.Tensor:
        """Where the parts of the replicas end in the next step, float64 of shape `[replicas + 1]`.

        Called once in a step and process, outside of replicas.
        """
        with tf.device("CPU:0"):
            turn, ends = self._turn.read_value(), self._ends.read_value()
            self._turn.assign(turn + 1)
            return ends[turn % tf.shape(ends, tf.int64)[0]]

    def note_step(self, begun: tf.Tensor, samples: tf.Tensor) -> None:
        """Notes what a replica has done, now that its step has ended; in replica context.

        Args:
            begun: the time at which it had its samples, in seconds.
            samples: how many these were.
        """
        own, now = self._own[index_of_replica()], tf.timestamp()
        before = own.read_value()
        first = tf.where(before[3] > 0, before[2], begun)
        had = before[0] + tf.cast(samples, tf.float64)
        own.assign(tf.stack([had, before[1] + now - begun, first, now]))

    def tell(self, strategy: tf.distribute.Strategy, state: LocalState) -> None:
        """Tells all processes what was measured, where a round ends; in cross-replica context.

        Args:
            strategy: the strategy.
            state: what the replicas have for themselves, before the next round begins.
        """

        def told() -> tf.Tensor:
            own = self._own[index_of_replica()]
            samples, busy, begun, ended = tf.unstack(own.read_value())
            own.assign(tf.zeros([_OWN], tf.float64))
            numbers = tf.cast(tf.stack([samples, busy, ended - begun]), tf.float32)
            made = tf.where(samples > 0, state.made.read_value(), 0.0)
            numbers = tf.concat([numbers, made[None]], axis=0)
            state.made.assign(tf.zeros([]))
            row = tf.one_hot(own_number(), self._told.shape[0])[:, None] * numbers
            flat = tf.reshape(row, [-1])
            name = f"{EXCHANGE_OF_ROUND}'s times"
            total = timed(name, flat, lambda: exchange.all_reduce([flat])[0])
            return tf.reshape(total, self._told.shape)

        found = strategy.extended.call_for_each_replica(told)
        lengths = [tf.convert_to_tensor(v) for v in (state.updates, state.steps)]
        table = strategy.experimental_local_results(found)[0]
        with tf.device("CPU:0"):
            # A second optimizer of the same step finds that all has been told.
            is_new = tf.reduce_any(table > 0)
            self._told.assign(tf.where(is_new, table, self._told))
            self._lengths.assign(tf.where(is_new, tf.stack(lengths), self._lengths))
            self._made.assign_add(tf.where(is_new, tf.cast(table[:, 3], tf.float64), 0.0))
            self._rounds.assign_add(tf.cast(is_new, tf.int64))

    # --- between steps ------------------------------------------------------------------------

    def begin_anew(self) -> None:
        """Forgets what was measured; called where training begins."""
        self._planner = Planner(self._seconds, self._processes)
        # An interrupted training may have left something.
        self._planned_after = self._counted = int(self._rounds.numpy())
        for left in (*self._own, self._made):
            left.assign(tf.zeros_like(left))
        self.plan = self._take(self._planner.first())

    def keep(self) -> None:
        """Plans the next round if one has ended; called between steps."""
        ended = int(self._rounds.numpy())
        if ended == self._planned_after:
            return
        self._planned_after = ended
        updates, steps = self._lengths.numpy().tolist()
        if updates:
            self.plan = self._take(self._planner.next(self._measured(), updates, steps))

    def take_made(self) -> list[float]:
        """The updates per round of each replica since the last call; empty without a round."""
        made, rounds = self._made.numpy(), int(self._rounds.numpy()) - self._counted
        self._counted += rounds
        self._made.assign(np.zeros(made.shape))
        return (made / rounds).tolist() if rounds else []

    def _measured(self) -> list[Measured]:
        """What each process has done in the last round."""
        table = self._told.numpy().astype(float).reshape(self._processes, self._local, _TOLD)
        return [
            Measured(math.fsum(own[:, 0].tolist()), *(max(own[:, i].tolist()) for i in (1, 2)))
            for own in table
        ]

    def _take(self, plan: Plan) -> Plan:
        shares = np.repeat(np.array(plan.rows), self._local, axis=1) / self._local
        self._ends.assign(ends_of(shares))
        self.updates.assign(plan.updates)
        self._turn.assign(0)
        return plan


def ends_of(shares: np.ndarray) -> np.ndarray:
    """The sums of the shares up to each replica.

    Args:
        shares: float64 of shape `[steps, replicas]`; the sum of each row is 1, up to rounding.

    Returns:
        float64 of shape `[steps, replicas + 1]`, from 0 to 1. Where a share is 0, equal numbers.
    """
    ends = np.concatenate([np.zeros([len(shares), 1]), np.cumsum(shares, axis=1)], axis=1)
    follows = np.cumsum(shares[:, ::-1], axis=1)[:, ::-1]
    ends[:, :-1][follows == 0] = 1.0
    ends[:, -1] = 1.0
    return np.minimum(ends, 1.0)


def _variable(dtype: tf.DType, shape: tuple | list = ()) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, dtype), trainable=False)
