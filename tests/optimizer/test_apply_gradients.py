"""`apply_gradients` returns the number of updates, as Keras' optimizers do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.ones((16, 4), "float32")


class Counting(keras.Sequential):
    """Logs what `apply_gradients` returns."""

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=data[1], y_pred=self(data[0], training=True))
        variables = self.trainable_variables
        pairs = zip(tape.gradient(loss, variables), variables)
        count = self.optimizer.apply_gradients(pairs)
        return {"loss": loss, "count": tf.cast(tf.convert_to_tensor(count), "float32")}


@pytest.mark.parametrize(("accumulation_steps", "count"), [(1, 4.0), (2, 2.0)])
def test_it_returns_the_number_of_updates(accumulation_steps, count):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=accumulation_steps)
    with strategy.scope():
        model = Counting([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    logs = model.fit(X, X[:, :1], batch_size=4, verbose=0).history
    assert logs["count"] == [count]


def test_with_loss_scaling_it_counts_updates_of_the_scaled_optimizer():
    variable = keras.Variable(0.0)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    optimizer = tfdist.DistributedOptimizer(scaled)
    counts = [
        int(optimizer.apply_gradients([(tf.constant(value), variable)]))
        for value in (1.0, float("inf"), 1.0)
    ]
    assert counts == [1, 1, 2]
