"""Steps that do something to their gradients, or name their variables in another way."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

_RANDOM = np.random.default_rng(0)
_X = _RANDOM.normal(size=(13, 6)).astype("float32")
_Y = _RANDOM.normal(size=(13, 3)).astype("float32")


class OwnStep(keras.Model):
    """Two layers and one that no loss depends on; `change(gradients, variables)` is applied."""

    def __init__(self, change, watched):
        super().__init__()
        self.change, self.watched = change, watched
        self.first, self.second = keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)
        self.unused = keras.layers.Dense(5)
        for layer, size in ((self.first, 6), (self.second, 8), (self.unused, 8)):
            layer.build((None, size))
        self.built = True

    def call(self, x):
        return self.second(self.first(x))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = tape.watched_variables() if self.watched else self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply(self.change(gradients, variables), variables)
        return {"loss": loss}


def _trained(strategy, change=lambda gradients, variables: gradients, watched=False):
    keras.utils.set_random_seed(3)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = OwnStep(change, watched)
        model.compile(keras.optimizers.Adam(0.05, epsilon=1e-2), "mse")
    model.fit(_X, _Y, batch_size=13, epochs=2, verbose=0)
    return model.get_weights()


def _of_each(change):
    return lambda gradients, _: [None if g is None else change(g) for g in gradients]


def _strategy(sharding="parameters"):
    return tfdist.MirroredStrategy(DEVICES[:2], sharding=sharding)


@pytest.mark.parametrize(
    "change",
    [
        lambda gradient: -gradient,
        lambda gradient: gradient - 0.5 * gradient,
        lambda gradient: tf.cast(tf.cast(gradient, tf.float64), tf.float32),
        lambda gradient: tf.debugging.check_numerics(gradient, "a gradient"),
        tf.stop_gradient,
    ],
    ids=["negative", "difference", "cast", "check_numerics", "stop_gradient"],
)
def test_what_is_linear_is_done_to_parts_of_sums(change):
    expected = _trained(None, _of_each(change))
    for found, one in zip(_trained(_strategy(), _of_each(change)), expected, strict=True):
        np.testing.assert_allclose(found, one, atol=1e-6)


def test_numerics_are_checked():
    def wrong(gradient):
        return tf.debugging.check_numerics(gradient * np.inf, "a gradient of mine")

    with pytest.raises(tf.errors.InvalidArgumentError, match="a gradient of mine"):
        _trained(_strategy(), _of_each(wrong))


def test_rounding_to_integers_is_refused():
    def rounded(gradient):
        return tf.cast(tf.cast(gradient, tf.int32), tf.float32)

    with pytest.raises(ValueError, match="cannot clip or normalize.*the operation Cast"):
        _trained(_strategy(), _of_each(rounded))


def test_zeros_in_place_of_none_are_refused():
    def filled(gradients, variables):
        pairs = zip(gradients, variables, strict=True)
        return [tf.zeros_like(v) if g is None else g for g, v in pairs]

    with pytest.raises(ValueError, match="Pass None for a weight without a gradient.*dense"):
        _trained(_strategy(), filled)


@pytest.mark.parametrize("sharding", [None, "optimizer", "parameters"])
def test_a_step_may_take_the_variables_that_its_tape_has_watched(sharding):
    expected = _trained(None, watched=True)
    for found, one in zip(_trained(_strategy(sharding), watched=True), expected, strict=True):
        np.testing.assert_allclose(found, one, atol=1e-6)
