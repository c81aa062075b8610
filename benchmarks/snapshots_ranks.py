"""What each process of a job of snapshots.py runs; the chief writes the results."""

from __future__ import annotations

import argparse
import copy
import json
import os
import tempfile
from pathlib import Path

import keras
import numpy as np

import tfdist

WIDTH = 1024


class Costs(keras.callbacks.Callback):
    """Notes what snapshots have cost by the end of each epoch."""

    def __init__(self, strategy: tfdist.ParameterServerStrategy):
        super().__init__()
        self.after = []
        self._strategy = strategy

    def on_epoch_end(self, epoch, logs=None):
        self.after.append(copy.copy(self._strategy.staleness_report().snapshots))


def measure(layers: int, snapshots: int, folder: str | None) -> dict[str, list[float] | int]:
    """The seconds of each snapshot but for the first two, and the bytes of one."""
    strategy = tfdist.ParameterServerStrategy(snapshot_every=1, snapshot_dir=folder)
    with strategy.scope():
        dense = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(layers)]
        model = keras.Sequential([keras.Input((WIDTH,)), *dense])
        model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(8, WIDTH)).astype("float32")
    costs = Costs(strategy)
    model.fit(x, x, batch_size=8, epochs=2 + snapshots, verbose=0, callbacks=[costs])
    new = [later.since(earlier) for earlier, later in zip(costs.after[1:], costs.after[2:])]
    if [cost.count for cost in new] != [1] * snapshots:
        raise RuntimeError(f"each epoch should have one snapshot. Received: {new}")
    return {"seconds": [cost.seconds for cost in new], "bytes": new[0].bytes}


def main() -> None:
    """Writes what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--snapshots", type=int, required=True)
    parser.add_argument("--writer", choices=["chief", "servers"], required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given = folder if arguments.writer == "servers" else None
        measured = measure(arguments.layers, arguments.snapshots, given)
    arguments.path.write_text(json.dumps(measured))
    os._exit(0)


if __name__ == "__main__":
    main()
