"""Compiled steps read and set variables in the order of one device, or they are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tests.step.test_compiled import Stepping, X, Y, _assert_equals_one_device, _compiled


class SlowingDown(Stepping):
    def after_the_update(self):
        rate = self.optimizer.learning_rate
        rate.assign(rate * 0.5)
        return 0.0


class Looking(Stepping):
    """Computes again, in a function that TensorFlow has traced before the update."""

    def build(self, shape):
        self.dense.build(shape)

    @tf.function
    def forward(self, x):
        return self.dense(x)

    def call(self, x):
        return self.forward(x) + 0.0 * self.forward(tf.ones((1, 4)))

    def after_the_update(self):
        return tf.reduce_sum(self.forward(tf.ones((1, 4))))


class Handling(Stepping):
    """Reads TensorFlow's own variable after the update."""

    def call(self, x):
        found = super().call(x)
        self.kept = self.dense.kernel.value
        return found

    def after_the_update(self):
        return tf.reduce_mean(self.kept + 0.0)


class Reporting(Stepping):
    """Its log is a variable."""

    def after_the_update(self):
        return self.optimizer.iterations


class Projecting(Stepping):
    """Sets a weight before its gradient is computed."""

    def train_step(self, data):
        if self.dense.built:
            self.dense.kernel.assign(keras.ops.clip(self.dense.kernel, -0.3, 0.3))
        return super().train_step(data)


class Scaling(layers.Layer):
    """Reads a running mean that it has just set, and that is averaged over replicas."""

    def build(self, shape):
        options = {"initializer": "ones", "trainable": False, "aggregation": "mean"}
        self.mean = self.add_weight(shape=(), **options)

    def call(self, x):
        self.mean.assign(0.9 * self.mean + 0.1 * keras.ops.mean(keras.ops.square(x)))
        return x / self.mean


@pytest.mark.parametrize("make", [SlowingDown, Looking, Handling, Reporting, Projecting])
def test_the_order_is_that_of_one_device(two_replicas, make):
    _assert_equals_one_device(two_replicas, make)


def test_a_value_that_is_averaged_is_read_as_without_xla(two_replicas):
    found = []
    for jit_compile in (True, False):
        with two_replicas.scope():
            model = _compiled(
                lambda: keras.Sequential([keras.Input((4,)), Scaling(), layers.Dense(2)]),
                jit_compile,
            )
        model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


class Skipping(Stepping):
    """Applies its gradients under a condition."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.optimizer.scale_loss(self.compute_loss(y=y, y_pred=self(x)))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)

        def update():
            self.optimizer.apply(gradients, variables)
            return 1

        tf.cond(tf.reduce_sum(gradients[0]) > 1e9, update, lambda: 0)
        return {"loss": loss}


class Dropping(Stepping):
    """Draws random numbers in a function of its own."""

    def __init__(self):
        super().__init__()
        self.dropped = tf.function(layers.Dropout(0.5, seed=1).call)

    def call(self, x):
        return super().call(self.dropped(x, training=True))


@pytest.mark.parametrize(("make", "what"), [(Skipping, "an optimizer"), (Dropping, "seed")])
def test_a_change_in_a_function_within_the_step_is_refused(two_replicas, make, what):
    with two_replicas.scope():
        model = _compiled(make)
    with pytest.raises(ValueError, match=f"several replicas.*Received: .*{what}"):
        model.fit(X, Y, batch_size=16, verbose=0)


def test_a_step_may_be_called_with_keywords(two_replicas):
    with two_replicas.scope():
        model = _compiled()
    model.fit(X, Y, batch_size=16, verbose=0)

    @tf.function(autograph=False)
    def step(data):
        return two_replicas.run(model.train_step, kwargs={"data": data})

    before = model.get_weights()[0]
    step((X[:16], Y[:16]))
    assert np.abs(model.get_weights()[0] - before).max() > 0
