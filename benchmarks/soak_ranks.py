"""What each rank of soak.py runs: many runs of `fit`, while ranks die and are replaced."""

from __future__ import annotations

import argparse
import json
import os
import signal
from pathlib import Path

import keras
import numpy as np

import tfdist

SIZE, BATCH = 128, 32


class Deaths(keras.callbacks.Callback):
    """Kills the last rank of a whole group now and then.

    Args:
        strategy: the strategy.
        ranks: how many a whole group has.
        own: the number of this process.
        often: in how many steps one rank dies.
    """

    decides_in_batches = False

    def __init__(self, strategy: tfdist.Strategy, ranks: int, own: int, often: int):
        super().__init__()
        self._strategy = strategy
        self._ranks = ranks
        self._own = own
        self._often = often
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts, and dies if it is time."""
        self._steps += 1
        members = self._strategy.processes.membership[:-2]
        is_last = len(members) == self._ranks and members[-1] == self._own
        if self._steps % self._often == 0 and is_last:
            os.kill(os.getpid(), signal.SIGKILL)


def resources(process: int) -> dict[str, float]:
    """Resident mebibytes, open descriptors and threads of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    values = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "MiB": int(values["VmRSS"].split()[0]) / 1024,
        "descriptors": len(os.listdir(f"/proc/{process}/fd")),
        "threads": int(values["Threads"]),
    }


def main() -> None:
    """Trains; rank 0 writes what it and its launcher use after each `fit`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--fits", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--often", type=int, required=True)
    arguments = parser.parse_args()
    own = int(os.environ["TFDIST_ELASTIC"].partition(":")[2])
    strategy = tfdist.Strategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(SIZE, activation="relu"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((SIZE,)), *layers])
        model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(BATCH * arguments.steps, SIZE)).astype("float32")
    deaths = Deaths(strategy, strategy.num_replicas_in_sync, own, arguments.often)
    found = []
    for _ in range(arguments.fits):
        history = model.fit(
            *(x, x[:, :1]), batch_size=BATCH, shuffle=False, verbose=0, callbacks=[deaths]
        ).history
        if own == 0:
            used = {"rank 0": resources(os.getpid()), "launcher": resources(os.getppid())}
            found.append({"recoveries": history["recoveries"][-1], **used})
            arguments.path.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
