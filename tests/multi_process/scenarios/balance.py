"""Ranks of different speeds."""

import time

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.multi_process.scenarios.common import error_of

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(16 * 40 + 5, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
SECONDS = (0.001, 0.004)  # for each sample, by rank


class Delay(keras.layers.Layer):
    """Sleeps for each sample."""

    seconds = 0.0  # set later: layers are made alike in all ranks

    def call(self, inputs):
        def sleep(batch):
            time.sleep(self.seconds * len(batch))
            return batch

        return tf.ensure_shape(tf.numpy_function(sleep, [inputs], inputs.dtype), inputs.shape)

    def compute_output_shape(self, input_shape):
        return input_shape


def model_with(delay):
    """A small model, compiled."""
    dense = keras.layers.Dense(5, activation="tanh", kernel_initializer="ones")
    model = keras.Sequential([keras.Input((6,)), delay, dense, keras.layers.Dense(1, "relu")])
    model.set_weights([np.linspace(-1, 1, w.size).reshape(w.shape) for w in model.get_weights()])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def trained(model):
    """What one epoch, evaluation and prediction come to."""
    history = model.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "loss": history["loss"],
        "evaluated": float(model.evaluate(X, Y, batch_size=16, verbose=0)),
        "predicted": model.predict(X, batch_size=16, verbose=0).tolist(),
    }


def slow_rank(here):
    """Rank 1 is slow."""
    strategy = here.make(balance=True)
    delay = Delay()
    with strategy.scope():
        model = model_with(delay)
    delay.seconds = SECONDS[strategy.processes.rank]
    before = strategy.balancer.shares.tolist()
    found = trained(model)
    return {**found, "before": before, "after": strategy.balancer.shares.tolist()}


def monitored(here):
    """Rank 1 is slow, and nothing is balanced."""
    strategy = here.make()
    delay = Delay()
    with strategy.scope():
        model = model_with(delay)
    delay.seconds = SECONDS[strategy.processes.rank]
    monitor = tfdist.callbacks.StragglerMonitor()
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, "callbacks": [monitor]}
    history = model.fit(X, Y, **options).history
    return {
        "weights": [w.tolist() for w in model.get_weights()],
        "slowest": history["slowest_replica"],
        "waiting": history["waiting"],
        "seconds": monitor.seconds[0].tolist(),
    }


def parted(here):
    """The ranks have other shares, which must not happen."""
    strategy = here.make(balance=True)
    with strategy.scope():
        model = model_with(Delay())
    strategy.balancer.move(np.array([(0.5, 0.5), (0.75, 0.25)][strategy.processes.rank]))
    return {"error": error_of(trained, model)}


def options_that_differ(here):
    """Only rank 0 balances."""
    rank = here.strategy.processes.rank
    return {"error": error_of(here.make, balance=rank == 0)}
