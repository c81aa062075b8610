"""The callback that stops training at the first gradient that is not finite, and names it."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.step.sharding.watching import is_finite, watch


class _GradientMonitor:
    """Remembers, on each replica and per variable, the first step with a non-finite gradient.

    Args:
        variables: those that the optimizer was built for.
    """

    def __init__(self, variables: Sequence[keras.Variable]):
        self._variables = variables
        self.step = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="monitored_steps",
        )
        self.first_steps = tf.Variable(
            tf.zeros([len(variables)], tf.int64),
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
            name="first_nonfinite_steps",
        )

    def record(self, gradients: list) -> None:
        """Checks one step's gradients; in replica context. Steps count from 1; 0 means no step."""
        self.step.assign_add(1)
        finite = tf.stack([is_finite(v, g) for v, g in zip(self._variables, gradients)])
        first = self.first_steps.read_value()
        found = tf.logical_and(tf.equal(first, 0), tf.logical_not(finite))
        self.first_steps.assign(tf.where(found, self.step.read_value(), first))


class TerminateOnNaN(keras.callbacks.Callback):
    """Stops training when a replica's gradient is NaN or infinite.

    Keras' own `TerminateOnNaN` looks at the loss, after the update. This callback looks at every
    replica's gradients before they are summed. It says in which training step (counted from 1
    since `fit` began; a micro-batch counts as one step), in which variable and on which replica it
    happened. With `mixed_float16` an overflow is part of normal training. Steps that loss scaling
    skips would stop training too, so leave the callback out there.

    With parameter servers, the replica is the worker that computed the gradient. A gradient that is
    dropped as too stale counts too.

    Example:

    >>> import keras, numpy as np, tfdist
    >>> strategy = tfdist.MirroredStrategy(["CPU:0"])
    >>> with strategy.scope():
    ...     layers = [keras.Input((1,)), keras.layers.Dense(1, name="out")]
    ...     model = keras.Sequential(layers, name="net")
    ...     model.compile(optimizer="sgd", loss="mse")
    >>> x = np.array([[1.0], [np.nan]])
    >>> stop = tfdist.callbacks.TerminateOnNaN()
    >>> history = model.fit(x, np.ones((2, 1)), epochs=3, verbose=0, callbacks=[stop])
    >>> stop.findings
    [(1, 'net/out/kernel', 0), (1, 'net/out/bias', 0)]

    Attributes:
        findings: a list of `(step, variable path, replica)`, empty while all is finite.
    """

    def __init__(self) -> None:
        super().__init__()
        self.findings: list[tuple[int, str, int]] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Starts watching. The train function is traced anew, with the checks in it."""
        optimizer = self.model.optimizer
        if not hasattr(optimizer, "gradient_monitor"):
            raise ValueError(
                "tfdist.callbacks.TerminateOnNaN needs a model that was compiled in the scope of a "
                f"tfdist strategy. Received: optimizer={type(optimizer).__name__}"
            )
        self.findings = []
        if self._has_workers:
            self.model.distribute_strategy.nonfinite = self.findings
            return
        with self.model.distribute_strategy.scope():
            optimizer.build(self.model.trainable_variables)
            optimizer.gradient_monitor = _GradientMonitor(optimizer.built_for)
        watch(optimizer.built_for, True)
        self.model.distribute_strategy.trace_anew(self.model)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops training at the first finding and prints it."""
        if not self._has_workers:
            for replica_id, steps in enumerate(self._first_steps()):
                for variable, step in zip(self.model.optimizer.built_for, steps):
                    if step:
                        self.findings.append((int(step), variable.path, replica_id))
        if self.findings:
            self.findings.sort(key=lambda finding: finding[0])
            step, path, replica_id = self.findings[0]
            tf.get_logger().warning(
                "Step %d: the gradient of %s is not finite on %s %d; terminating training.",
                step,
                path,
                "worker" if self._has_workers else "replica",
                replica_id,
            )
            self.model.stop_training = True

    @property
    def _has_workers(self) -> bool:
        """Whether gradients come from workers, as with parameter servers."""
        return hasattr(self.model.distribute_strategy, "nonfinite")

    def _first_steps(self) -> np.ndarray:
        """For each replica of all processes and each variable, the first non-finite step."""
        strategy = self.model.distribute_strategy
        monitor = self.model.optimizer.gradient_monitor
        local = strategy.experimental_local_results(monitor.first_steps)
        row = np.concatenate([part.numpy() for part in local])
        return strategy.processes.all_gather(row).reshape(-1, len(self.model.optimizer.built_for))

    def on_train_end(self, logs: dict | None = None) -> None:
        """Stops watching."""
        if self._has_workers:
            self.model.distribute_strategy.nonfinite = None
            return
        self.model.optimizer.gradient_monitor = None
        watch(self.model.optimizer.built_for, False)
        self.model.train_function = None
