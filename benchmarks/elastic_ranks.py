"""What each rank of elastic.py runs; rank 0 writes how long its steps took, in how many ranks."""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

BATCH = 64


class Watch(keras.callbacks.Callback):
    """Notes how long each step takes; kills this process in one of them.

    Args:
        kill: the number of the step; None for none.
        until_replaced: whether to stop training some steps after another process has taken the
            place of a killed one.
    """

    def __init__(self, kill: int | None, until_replaced: bool):
        super().__init__()
        self.decides_in_batches = until_replaced
        self.seconds: list[float] = []
        self.ranks: list[int] = []
        self._kill = kill
        self._ended = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes the time since the step before."""
        now = time.perf_counter()
        self.seconds.append(now - self._ended)
        self.ranks.append(self.model.distribute_strategy.num_replicas_in_sync)
        self._ended = now
        last = set(self.ranks[-10:])
        if self.decides_in_batches and max(last) == min(last) > min(self.ranks):
            self.model.stop_training = True
        if batch + 1 == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--units", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--kill", type=int)
    parser.add_argument("--until-replaced", action="store_true")
    arguments = parser.parse_args()
    strategy = tfdist.Strategy()
    rank, last = strategy.processes.rank, strategy.processes.size - 1
    units = arguments.units
    with strategy.scope():
        layers = [keras.layers.Dense(units, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((units,)), *layers])
        model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(BATCH, units)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, x)).repeat()
    # One that is started later has a rank that is no rank of the group.
    kill = arguments.kill if rank == last else None
    watch = Watch(kill, arguments.until_replaced)
    model.fit(data, steps_per_epoch=arguments.steps, verbose=0, callbacks=[watch])
    if rank == 0:
        arguments.path.write_text(json.dumps({"seconds": watch.seconds, "ranks": watch.ranks}))


if __name__ == "__main__":
    main()
