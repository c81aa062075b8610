"""Calls outside of `fit`, in an elastic job in which ranks die.

python -m tfdist run -n 4 --min 1 -m tests.elastic.calls FOLDER

Rank 0 dies while it reads weights for all, rank 1 in a `train_on_batch`, and rank 2 leaves after it
has forked a process. Without a launcher, it trains on one device.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import signal
import sys
import threading
import time


def main() -> None:
    """Trains, and writes what came of it."""
    folder = pathlib.Path(sys.argv[1])
    number = int(os.environ.get("TFDIST_ELASTIC", ":-1").partition(":")[2])

    import h5py
    import keras
    import numpy as np

    import tfdist

    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(120, 6)).astype("float32"), random.normal(size=(120, 1))
    strategy = tfdist.Strategy("auto") if number >= 0 else None
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])

    class DiesWhenItReads(h5py.File):
        def __init__(self, name, mode="r", **options):
            super().__init__(name, mode, **options)
            if number == 0 and mode == "r":
                os.kill(os.getpid(), signal.SIGKILL)

    logs = []
    for step in range(12):
        batch = slice(10 * step, 10 * step + 10)
        if step == 3:
            model.save_weights(str(folder / "saved.weights.h5"))
        if step == 5:
            h5py.File = DiesWhenItReads
            model.load_weights(str(folder / "saved.weights.h5"))
            h5py.File = DiesWhenItReads.__mro__[1]
        if step == 7 and number == 1:
            threading.Timer(0.004, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if step == 9 and number == 2:
            leave(folder)
        logs.append(model.train_on_batch(x[batch], y[batch], return_dict=True))
        if number >= 0:
            time.sleep(0.05)
    logs.append(model.test_on_batch(x, y, return_dict=True))
    found = {
        "weights": model.get_weights(),
        "logs": [{name: float(value) for name, value in one.items()} for one in logs],
        "predicted": model.predict_on_batch(x),
        "iterations": int(model.optimizer.iterations.numpy()),
    }
    (folder / f"calls-{number}.pickle").write_bytes(pickle.dumps(found))


def leave(folder: pathlib.Path) -> None:
    """Forks a process that is ended by SIGTERM, and then leaves by SIGTERM."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(1)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    (folder / "child").write_text(str(os.WTERMSIG(status)))
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
