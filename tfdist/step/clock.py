"""How long each replica computes in its train steps, before it waits for the others."""

from __future__ import annotations

import tensorflow as tf

from tfdist.step.replica import ReplicaStep


class StepClock:
    """The seconds that each replica has computed; make it in a strategy's scope.

    A replica computes from its batch to its gradients. Then it waits for those of the others.

    Attributes:
        seconds: a float64 scalar of each replica, the sum over its train steps.
    """

    def __init__(self) -> None:
        self.seconds = tf.Variable(
            0.0,
            dtype=tf.float64,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            name="seconds_of_steps",
        )

    def start(self, step: ReplicaStep) -> None:
        """Measures the step that a replica begins; in replica context."""
        begun = tf.timestamp()

        def stop() -> None:
            with tf.control_dependencies(step.notes.computed):
                seconds = tf.timestamp() - begun
            self.seconds.assign_add(seconds)

        step.notes.when_computed.append(stop)
