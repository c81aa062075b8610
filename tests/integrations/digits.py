"""What the tests give to Slurm and Ray: trains digits; each rank writes its weights.

python train.py FOLDER [--backup] [--dies] [--awaits=EPOCH:PATTERN:FILES]...

An epoch that awaits files begins when so many are in the folder.
"""

import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np
from sklearn.datasets import load_digits

import tfdist

EPOCHS = 6
AWAITS = [word.removeprefix("--awaits=").split(":") for word in sys.argv if "--awaits=" in word]


class Slow(keras.callbacks.Callback):
    """Leaves time for signals, and says which epoch has begun, and who is in it."""

    def on_epoch_begin(self, epoch, logs=None):
        (folder / f"epoch-{epoch}").touch()
        if "--dies" in sys.argv and epoch == 3 and strategy.processes.rank == 1:
            died = folder / "died"
            if not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
        (folder / f"rank-{epoch}-{restarts}-{os.getpid()}").touch()
        for begins, pattern, files in AWAITS:
            while int(begins) == epoch and len([*folder.glob(pattern)]) < int(files):
                time.sleep(0.1)


folder = pathlib.Path(sys.argv[1])
digits = load_digits()
x, y = digits.data[:600].astype("float32") / 16, digits.target[:600]

keras.utils.set_random_seed(1)
strategy = tfdist.Strategy("auto")
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
callbacks = [Slow()]
if "--backup" in sys.argv:
    callbacks.append(keras.callbacks.BackupAndRestore(folder / "backup"))
model.fit(x, y, batch_size=64, epochs=EPOCHS, shuffle=False, callbacks=callbacks, verbose=0)

place = f"{strategy.processes.rank} of {strategy.num_replicas_in_sync}"
np.savez(folder / f"{place}.npz", *model.get_weights())
