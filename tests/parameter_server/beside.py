"""What every process of a job with an evaluator runs: all weights tell the number of updates.

python -m tests.parameter_server.beside FOLDER KIND

KIND is the end of a file's name, or "manager" for a `tf.train.CheckpointManager`; with the latter
the script is written as for TensorFlow's strategy.
"""

import json
import pathlib
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.beside_numbers import EPOCHS, RATE, WIDTH

FOLDER, KIND = pathlib.Path(sys.argv[1]), sys.argv[2]


def note(name, content):
    (FOLDER / name).write_text(json.dumps(content))


def facts(model):
    """The number of updates, and the numbers of updates that the weights tell."""
    told = np.concatenate([np.ravel(weight) for weight in model.get_weights()]) / -RATE
    return {"updates": int(model.optimizer.iterations), "told": np.unique(told).tolist()}


def make():
    layer = keras.layers.Dense(WIDTH, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((WIDTH,)), layer])
    # The gradient is 1 for each weight.
    model.compile(keras.optimizers.SGD(RATE), lambda y, p: keras.ops.sum(p, axis=-1))
    return model


def data():
    return tf.data.Dataset.from_tensors((np.ones((1, WIDTH), "float32"),) * 2).repeat(40)


class Noted(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.found = []

    def on_test_end(self, logs=None):
        self.found.append({**facts(self.model), "loss": logs["loss"]})
        note("evaluated", self.found)


class WaitForEvaluator(keras.callbacks.Callback):
    """Training does not end before the evaluator has evaluated something."""

    def on_epoch_end(self, epoch, logs=None):
        end = time.monotonic() + 120
        while epoch == 1 and not (FOLDER / "evaluated").exists() and time.monotonic() < end:
            time.sleep(0.05)


def evaluate_checkpoints():
    noted, log = Noted(), keras.callbacks.TensorBoard(FOLDER / "log")
    tfdist.SidecarEvaluator(
        make(), data().take(1), FOLDER / "saved", callbacks=[noted, log]
    ).start()


def main():
    if KIND == "manager":
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type == "evaluator":
            evaluate_checkpoints()
            return
        strategy = tfdist.ParameterServerStrategy(resolver)
    else:
        strategy = tfdist.Strategy()
        if strategy.is_evaluator:
            with strategy.scope():
                evaluate_checkpoints()
            return
    with strategy.scope():
        model = make()
    if KIND == "manager":
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        manager = tf.train.CheckpointManager(checkpoint, str(FOLDER / "saved"), max_to_keep=1)
        saving = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: manager.save())
    else:
        weights_only = KIND == ".weights.h5"
        path = str(FOLDER / "saved" / f"newest{KIND}")
        saving = keras.callbacks.ModelCheckpoint(path, save_weights_only=weights_only, save_freq=4)
    model.fit(data(), epochs=EPOCHS, verbose=0, callbacks=[saving, WaitForEvaluator()])
    note("trained", facts(model))


if __name__ == "__main__":
    main()
