"""Models whose `train_step` and `test_step` are `tf.function`s are trained as others are."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(35, 6)).astype("float32")
Y = X[:, :2] ** 2


class Model(keras.Sequential):
    """Counts its loss by one number per step, and returns that of the last batch too."""

    def __init__(self):
        super().__init__([keras.Input((6,)), keras.layers.Dense(2)])
        self.tracker = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        return [self.tracker, *super().metrics]

    def _loss(self, data):
        x, y = data
        loss = self.compute_loss(x, y, self(x))
        self.tracker.update_state(loss)
        return loss

    @tf.function
    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self._loss(data)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {**self.get_metrics_result(), "last": loss}

    @tf.function
    def test_step(self, data):
        self._loss(data)
        return self.get_metrics_result()


def trained(strategy, accumulated, *, eagerly):
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = Model()
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulated)
        model.compile(optimizer, "mse", run_eagerly=eagerly)
    options = {"batch_size": 16, "shuffle": False, "validation_data": (X, Y), "verbose": 0}
    return model.get_weights, model.fit(X, Y, epochs=3, **options).history


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("accumulated", [None, 2])
@pytest.mark.parametrize("replicas", [2, pytest.param(3, marks=pytest.mark.full)])
def test_the_result_is_that_of_one_device(replicas, accumulated, eagerly):
    expected, history = trained(None, accumulated, eagerly=eagerly)
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas], accumulation_steps=accumulated or 1)
    weights, found = trained(strategy, None, eagerly=eagerly)
    for ours, theirs in zip(weights(), expected(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert found.keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)
