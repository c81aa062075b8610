"""A training with a report, in which rank 1 is slow; each rank writes down what it has seen.

python -m tfdist run -n 2 -m tests.watch.job STRATEGY FOLDER [KILLED]

KILLED is a rank that dies in the middle of the second epoch.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist

X = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


SLEEPS = [0.0]  # not in the layer, whose config must be the same in all ranks


class Slow(keras.layers.Layer):
    """Sleeps in a rank."""

    def call(self, inputs):
        def sleep(batch):
            time.sleep(SLEEPS[0])
            return batch

        slept = tf.numpy_function(sleep, [inputs], inputs.dtype, stateful=False)
        return tf.ensure_shape(slept, inputs.shape)

    def compute_output_shape(self, input_shape):
        return input_shape


class Pause(keras.callbacks.Callback):
    """Takes its time after each step."""

    decides_in_batches = changes_variables = saves_alone = False

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)


class Dies(keras.callbacks.Callback):
    """Kills this process in the second epoch."""

    decides_in_batches = changes_variables = saves_alone = False

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch == 1 and batch == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


def train(strategy, callbacks, sleeps=False):
    """The weights after three epochs, and the history."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [Slow()] if sleeps else []
        layers += [keras.layers.Dense(4), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((8,)), *layers], name="slow_one")
        model.compile(keras.optimizers.SGD(0.01, 0.9), "mse")
    given = {"batch_size": 12, "epochs": 3, "verbose": 2, "shuffle": False}
    history = model.fit(X, Y, callbacks=callbacks, **given).history
    return model.get_weights(), history


def main() -> None:
    """Trains in one rank of the job."""
    name, folder, *killed = sys.argv[1:]
    strategy = tfdist.Strategy(name)
    rank = strategy.processes.rank
    callbacks = strategy.callbacks(report=os.path.join(folder, "report.html"))
    if killed and int(killed[0]) == rank:
        callbacks.append(Dies())
    SLEEPS[0] = 0.09 if rank == 1 else 0.0
    sleeps = name != "parameter_server"  # on whose workers Python's functions do not run
    if not sleeps:
        callbacks.append(Pause())
    weights, history = train(strategy, callbacks, sleeps)
    found = {"weights": [w.tolist() for w in weights], "history": history}
    (pathlib.Path(folder) / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
