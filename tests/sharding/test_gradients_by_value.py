"""Gradients that are asked for by `variable.value`, which is a variable in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class ByValue(keras.Sequential):
    """Names the weights by their values, after the tape has recorded."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[1], y_pred=self(data[0], training=True))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}


def _weights(devices, run_eagerly=False, **options):
    keras.utils.set_random_seed(0)
    with tfdist.MirroredStrategy(DEVICES[:devices], **options).scope():
        model = ByValue([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=run_eagerly)
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("run_eagerly", [False, pytest.param(True, marks=pytest.mark.full)])
def test_they_are_those_by_the_variables(run_eagerly):
    ours = _weights(2, run_eagerly, sharding="parameters")
    for weight, expected in zip(ours, _weights(1), strict=True):
        np.testing.assert_allclose(weight, expected, atol=1e-6, rtol=0)
