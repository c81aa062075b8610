"""Where one optimizer scales a loss and another one applies gradients, the share counts once."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfdist
from tests.devices import DEVICES

_RANDOM = np.random.default_rng(0)
X = _RANDOM.normal(size=(35, 6)).astype("float32")
Y = _RANDOM.normal(size=(35, 1)).astype("float32")


class TwoParts(keras.Model):
    """A body and a head, each with an optimizer of its own."""

    def __init__(self, with_own_loss):
        super().__init__()
        self.body, self.head = layers.Dense(4, activation="tanh"), layers.Dense(1)
        self.with_own_loss = with_own_loss

    def call(self, x):
        return self.head(self.body(x))

    def compile(self, optimizer, body_optimizer, **options):
        super().compile(optimizer, **options)
        self.body_optimizer = body_optimizer

    def train_step(self, data):
        x, y = data
        body, head = self.body.trainable_variables, self.head.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            loss = ops.mean(ops.square(y - self(x, training=True)))
            scaled = self.optimizer.scale_loss(loss)
            of_body = ops.mean(ops.square(self.body(x))) if self.with_own_loss else scaled
        gradients = tape.gradient(of_body, body), tape.gradient(scaled, head)
        self.body_optimizer.apply_gradients(zip(gradients[0], body))
        self.optimizer.apply_gradients(zip(gradients[1], head))
        return {"loss": loss}


def trained(strategy, with_own_loss, **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = TwoParts(with_own_loss)
        model(X[:1])
        model.compile(keras.optimizers.SGD(0.1), keras.optimizers.SGD(0.05), **options)
    model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(16), epochs=2, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("with_own_loss", [False, True])
def test_the_share_counts_once(with_own_loss):
    ours = trained(tfdist.MirroredStrategy(DEVICES[:2]), with_own_loss)
    expected = trained(tf.distribute.get_strategy(), with_own_loss)
    for our, their in zip(ours, expected, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)


def test_eager_steps_cannot_tell():
    with pytest.raises(ValueError, match="it cannot be told whether they are of a scaled loss"):
        trained(tfdist.MirroredStrategy(DEVICES[:2]), False, run_eagerly=True)
