"""How long each replica computes in its train steps, before it waits for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.step.replica import ReplicaStep


class StepClock:
    """The seconds that each replica has computed; make it in a strategy's scope.

    A replica computes from its batch to its gradients. Then it waits for those of the others.

    Attributes:
        seconds: a float64 scalar of each replica, the sum over its train steps.
        steps: a float64 scalar of each replica, how many steps these are.
    """

    def __init__(self) -> None:
        self.seconds, self.steps = (
            tf.Variable(
                0.0,
                dtype=tf.float64,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
                name=name,
            )
            for name in ("seconds_of_steps", "measured_steps")
        )

    def start(self, step: ReplicaStep) -> None:
        """Measures the train step that a replica begins; in replica context."""
        self.steps.assign_add(1.0)
        when_computed(step, tf.timestamp(), self.seconds.assign_add)


def when_computed(step: ReplicaStep, begun: tf.Tensor, use: Callable[[tf.Tensor], Any]) -> None:
    """Calls `use` with the seconds that the replica computes, as soon as it has its gradients.

    Args:
        step: the step of the replica.
        begun: the time at which the replica begins, float64.
        use: gets a float64 scalar.
    """

    def computed() -> None:
        with tf.control_dependencies(step.notes.computed):
            ended = tf.timestamp()
        use(ended - tf.add_n([begun, *step.notes.waited]))

    step.notes.when_computed.append(computed)


def waiting(step: ReplicaStep, exchange: Callable[[], list[tf.Tensor]]) -> list[tf.Tensor]:
    """What `exchange` returns, which a replica's gradients need.

    An eager step notes for how long the replica waits. In a graph the replica computes meanwhile.
    """
    if not tf.executing_eagerly():
        return exchange()
    begun = tf.timestamp()
    results = exchange()
    step.notes.waited.append(tf.timestamp() - begun)
    return results
