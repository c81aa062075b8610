"""A job that drops late parts; worker 0 is stopped in the first epoch and killed in the second.

python -m tests.parameter_server.dropping FOLDER
"""

import json
import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tests.parameter_server.counting import sleep
from tests.parameter_server.drop_scenarios import ROWS, Seen, X, Y, data
from tfdist.staleness import Synchronous

FOLDER = pathlib.Path(sys.argv[1])
EPOCHS = 3


class Linear(keras.Sequential):
    """A step takes 50 ms."""

    def __init__(self):
        super().__init__([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        self.seen = Seen()

    def train_step(self, data):
        x, y, ids = data
        self.seen.update_state(ids)
        return super().train_step((x + sleep(0.05), y))


class Faults(keras.callbacks.Callback):
    """Notes the samples of each step, and what happens to worker 0."""

    def __init__(self):
        super().__init__()
        self.steps = []

    def on_epoch_begin(self, epoch, logs=None):
        self.before = 0
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        now = self.model.seen.counts.numpy()
        self.steps.append(np.repeat(np.arange(ROWS), now - self.before).tolist())
        self.before = now
        if batch == 1 and self.epoch < 2:
            number = (signal.SIGSTOP, signal.SIGKILL)[self.epoch]
            os.kill(int((FOLDER / "pid-worker-0").read_text()), number)


def by_hand(steps):
    """The weights of one device after gradient descent on these samples."""
    x = tf.constant(np.hstack([X, np.ones((ROWS, 1), "float32")]))
    weights = tf.constant([[1.0], [1.0], [1.0], [0.0]])
    for rows in steps:
        own = tf.gather(x, rows)
        error = own @ weights - tf.gather(Y, rows)
        weights -= 0.05 * 2 * tf.transpose(own) @ error / len(rows)
    return weights.numpy().ravel()


def main():
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    (FOLDER / f"pid-{task['type']}-{task['index']}").write_text(str(os.getpid()))
    strategy = tfdist.ParameterServerStrategy(staleness=Synchronous(drop=1))
    with strategy.scope():
        model = Linear()
        model.compile(keras.optimizers.SGD(0.05), "mse")
    faults = Faults()
    model.fit(data(), epochs=EPOCHS, verbose=0, callbacks=[faults])
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    facts = {
        "steps": [len(rows) for rows in faults.steps],
        "apart": float(np.abs(weights - by_hand(faults.steps)).max()),
        "dropped": strategy.staleness_report().dropped_parts,
        "late": strategy.staleness_report().worker(0).late,
    }
    (FOLDER / "facts").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
