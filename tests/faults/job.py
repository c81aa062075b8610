"""What every rank runs: four epochs with a backup, and a fault in one rank if it is asked for.

python job.py STRATEGY FOLDER [FAULT RANK]
"""

import os
import pathlib
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tfdist

NAME, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
FAULT, FAULTY_RANK = (sys.argv[3], int(sys.argv[4])) if len(sys.argv) > 3 else ("none", -1)

keras.utils.set_random_seed(3)
options = {"heartbeat_timeout": 3} if NAME == "multi_worker" else {}
strategy = tfdist.Strategy(NAME, accumulation_steps=3, **options)
faulty = strategy.processes.rank == FAULTY_RANK
random = np.random.default_rng(0)
x = random.normal(size=(64, 8)).astype("float32")
y = (x @ random.normal(size=(8, 3))).argmax(axis=1)

with strategy.scope():
    layers = [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Fault(keras.callbacks.Callback):
    """Happens in the third epoch."""

    epoch = -1

    def on_epoch_begin(self, epoch, logs=None):
        Fault.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if not faulty or (Fault.epoch, batch) != (2, 1):
            return
        if FAULT == "kill_step":
            die()
        if FAULT == "leave":
            sys.exit(0)
        if FAULT == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)


def data():
    for start in range(0, 64, 8):
        if faulty and FAULT == "data" and Fault.epoch == 2 and start == 24:
            raise ValueError("a broken record")
        yield x[start : start + 8], y[start : start + 8]


if faulty and FAULT == "kill_trace":
    call = model.layers[0].call

    def dying_call(*args, **kwargs):
        if tf.distribute.in_cross_replica_context() or not tf.executing_eagerly():
            die()
        return call(*args, **kwargs)

    model.layers[0].call = dying_call

specs = tf.TensorSpec((None, 8), tf.float32), tf.TensorSpec((None,), tf.int64)
dataset = tf.data.Dataset.from_generator(data, output_signature=specs)
backup = keras.callbacks.BackupAndRestore(str(FOLDER / "backup"), delete_checkpoint=False)
model.fit(dataset, epochs=4, verbose=0, callbacks=[backup, Fault()])
state = [v.numpy().ravel() for v in [*model.variables, *model.optimizer.variables]]
np.save(FOLDER / f"rank{strategy.processes.rank}.npy", np.concatenate(state).astype("float64"))
