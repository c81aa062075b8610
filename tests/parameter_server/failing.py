"""Errors in steps and data, in one process with a cluster of its own; prints what came of them.

python -m tests.parameter_server.failing
"""

import json

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.counting import BATCHES, SAMPLES, Counting, Recorder

FOUND = {}


class Failing(Counting):
    """Fails on worker 1 as long as `fails` is 1."""

    def __init__(self, pauses):
        super().__init__(pauses)
        self.fails = self.add_weight(name="fails", initializer="zeros", trainable=False)

    def check(self, data, worker):
        bad = tf.logical_and(tf.equal(worker, 1), tf.convert_to_tensor(self.fails) > 0)
        tf.debugging.assert_equal(bad, False, "a bad sample")


class Stop(keras.callbacks.Callback):
    """Ctrl-C after some batches."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            raise KeyboardInterrupt


def numbers():
    return tf.data.Dataset.range(SAMPLES)


def broken(number):
    with tf.control_dependencies(
        [tf.debugging.assert_less(number, tf.constant(50, tf.int64), "a broken record")]
    ):
        return tf.identity(number)


def fit(name, model, data, **options):
    """Trains, and notes the error and the number of updates."""
    before = int(model.clock[0])
    error = None
    try:
        model.fit(data.batch(SAMPLES // BATCHES), verbose=0, **options)
    except BaseException as raised:
        error = [type(raised).__name__, str(raised), getattr(raised, "__notes__", [])]
    facts = model.facts()
    FOUND[name] = {
        "error": error,
        "updates": facts["updates"] - before,
        "exact": sum(facts["seen"]) == facts["updates"] * SAMPLES // BATCHES,
    }


def nan_gradients(strategy, callback):
    """Trains on data of which one batch is NaN, in the order of one worker at a time."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="out")])
        model.compile("sgd", "mse")
    x = np.ones((40, 2))
    x[12] = np.nan
    history = model.fit(x, np.ones(40), 2, epochs=3, shuffle=False, verbose=0, callbacks=[callback])
    updates = int(model.optimizer.iterations)
    return {
        "epochs": len(history.history["loss"]),
        "updates": updates,
        "NaN": bool(np.isnan(model.get_weights()[0]).any()),
    }


def main():
    with tfdist.cluster.local_cluster(workers=2, ps=1) as resolver:
        strategy = tfdist.ParameterServerStrategy(resolver)
        with strategy.scope():
            model = Failing([0.01, 0.01])
            model.compile(Recorder())
        model.built = True
        fit("well", model, numbers())
        model.fails.assign(1.0)
        fit("step", model, numbers(), epochs=50)
        model.fails.assign(0.0)
        fit("after an error", model, numbers())
        fit("Ctrl-C", model, numbers(), callbacks=[Stop()])
        fit("after Ctrl-C", model, numbers())
        fit("data of workers", model, numbers().map(broken))
        FOUND["addresses"] = strategy.addresses["worker"]
        stop = tfdist.callbacks.TerminateOnNaN()
        FOUND["NaN"] = nan_gradients(strategy, stop), stop.findings
        FOUND["NaN of Keras"] = nan_gradients(strategy, keras.callbacks.TerminateOnNaN())
    print(json.dumps(FOUND))


if __name__ == "__main__":
    main()
