"""A compressed and recorded job whose worker 0 is killed, and comes back.

python -m tests.parameter_server.losing FOLDER NAME; NAME is that of the file of the weights.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import keras
import numpy as np

import tfdist
from tfdist.environment import REPLAY

FOLDER, NAME = pathlib.Path(sys.argv[1]), sys.argv[2]
CONFIG = json.loads(os.environ.get("TF_CONFIG", "{}"))
BATCHES = 24


class Loss(keras.callbacks.Callback):
    """Kills and starts the worker, but in a replay; stops when it has made updates again."""

    def __init__(self, strategy):
        super().__init__()
        self.strategy = strategy
        self.epoch = self.before = 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch
        self.before = self.updates_of_worker_0()

    def updates_of_worker_0(self):
        return sum(self.strategy.staleness_report().worker(0).histogram.values())

    def on_train_batch_end(self, batch, logs=None):
        if REPLAY in os.environ:
            return
        time.sleep(0.04)  # fewer epochs until the worker is back
        if (self.epoch, batch) == (1, 5):
            os.kill(int((FOLDER / "pid-worker-0").read_text()), signal.SIGKILL)
        elif (self.epoch, batch) == (2, 0):
            config = CONFIG | {"task": {"type": "worker", "index": 0}}
            environ = os.environ | {"TF_CONFIG": json.dumps(config)}
            command = [sys.executable, "-m", "tests.parameter_server.losing", *sys.argv[1:]]
            subprocess.Popen(command, env=environ)

    def on_epoch_end(self, epoch, logs=None):
        if epoch > 2 and self.updates_of_worker_0() > self.before:
            self.model.stop_training = True


def main():
    if CONFIG and REPLAY not in os.environ:
        task = CONFIG["task"]
        (FOLDER / f"pid-{task['type']}-{task['index']}").write_text(str(os.getpid()))
    strategy = tfdist.ParameterServerStrategy(
        input="dynamic",
        compression=tfdist.compression.TopK(0.1, min_bytes=0),
        record=FOLDER / "run.log",
    )
    keras.utils.set_random_seed(1)
    x = np.random.normal(size=(BATCHES * 4, 8)).astype("float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.compile(keras.optimizers.SGD(0.01), "mse")
    history = model.fit(
        x, x[:, :4], batch_size=4, epochs=3000, verbose=0, callbacks=[Loss(strategy)]
    )
    updates = BATCHES * len(history.epoch)
    counted = strategy.staleness_report().updates, int(model.optimizer.iterations)
    assert counted == (updates, updates), (counted, updates)
    np.savez(FOLDER / NAME, *model.get_weights())


if __name__ == "__main__":
    main()
