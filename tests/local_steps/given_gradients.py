"""A loop of local steps in which the samples are the gradients, whatever the weights are."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist

SHAPES = ((4, 2), (5,))  # with two fragments, each variable is one
_SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


class Loop:
    """Two replicas, each with SGD of the learning rate 1; a gradient is the mean of its samples."""

    def __init__(self, local: Any, compression: Any = None):
        devices = ["CPU:0", "CPU:1"]
        self.strategy = tfdist.MirroredStrategy(devices, local=local, compression=compression)
        with self.strategy.scope():
            self.weights = [keras.Variable(np.zeros(shape, "float32")) for shape in SHAPES]
            self.optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(1.0))
            self.optimizer.build(self.weights)
        values = [weight.value for weight in self.weights]
        self.checkpoint = tf.train.Checkpoint(weights=values, optimizer=self.optimizer)
        self._train = tf.function(
            lambda x: self.strategy.run(tfdist.local_step(self._step), args=(x,)),
            reduce_retracing=True,
        )

    def _step(self, x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            flat = tf.concat([tf.reshape(w.value, [-1]) for w in self.weights], 0)
            loss = tf.reduce_mean(tf.linalg.matvec(x, flat))
        gradients = tape.gradient(loss, [w.value for w in self.weights])
        self.optimizer.apply(gradients, self.weights)

    def train(self, random: np.random.Generator, rows: int = 1) -> None:
        """One update with `rows` samples for each replica."""
        self.train_on(random.normal(size=(2, rows, _SIZE)))

    def train_on(self, parts: np.ndarray) -> None:
        """One update; `parts` has the samples of each replica."""
        self._train(
            self.strategy.experimental_distribute_values_from_function(
                lambda c: tf.constant(parts[c.replica_id_in_sync_group].astype("float32"))
            )
        )

    def copies(self) -> list[list[np.ndarray]]:
        """For each variable the values of all replicas."""
        local = self.strategy.experimental_local_results
        return [[own.numpy() for own in local(w.value)] for w in self.weights]

    def residuals(self) -> list[np.ndarray]:
        """What all replicas have left to be sent, by variable."""
        if self.optimizer.compression_state is None:
            return [np.zeros(shape) for shape in SHAPES]
        local = self.strategy.experimental_local_results
        parts = [local(part["residual"]) for part in self.optimizer.compression_state.parts]
        return [
            sum(own.numpy() for own in part).reshape(shape)
            for part, shape in zip(parts, SHAPES, strict=True)
        ]
