"""What each of the hosts of local_steps.py runs; rank 0 writes what it has found."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks.local_sgd import building
from benchmarks.local_sgd.choices import CHOICES
from benchmarks.pages import ROOT
from tests.traffic.joining import join

# Bytes that this host has sent.
_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


class Notes(keras.callbacks.Callback):
    """Notes seconds and bytes of each block of updates, and the validation loss after it.

    Args:
        validation: inputs and targets.
        batch_size: for validation.
    """

    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(self, validation: tuple, batch_size: int):
        super().__init__()
        self._validation, self._batch_size = validation, batch_size
        self._begun, self._sent = 0.0, 0
        self.found: dict[str, list[float]] = {"seconds": [], "bytes": [], "loss": []}

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins a block."""
        self._begun, self._sent = time.perf_counter(), int(_SENT.read_text())

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Ends a block; validation does not count."""
        self.found["seconds"].append(time.perf_counter() - self._begun)
        self.found["bytes"].append(int(_SENT.read_text()) - self._sent)
        found = self.model.evaluate(*self._validation, batch_size=self._batch_size, verbose=0)
        self.found["loss"].append(float(found[0]))


def task_of(name: str, updates: int, seed: int) -> tuple[Any, tf.data.Dataset, tuple]:
    """A function that builds the compiled model, the training samples, and the validation data."""
    sys.path.insert(0, str(ROOT / "examples"))
    example = importlib.import_module(name)
    if name == "char_lm":
        train, held_out = example.load_text()
        validation = example.validation_pieces(held_out)
        validation = tuple(part[:256] for part in validation)
    else:
        train, validation, _ = example.load_data()
    return lambda: example.build_model(updates), example.training_samples(train, seed), validation


def main() -> None:
    """Trains, and writes the numbers of each block."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--choice", choices=CHOICES, required=True)
    parser.add_argument("--task", choices=("char_lm", "digits"), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True, help="in a block")
    parser.add_argument("--batch", type=int, required=True, help="of all hosts together")
    parser.add_argument("backend")
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("addresses", nargs="+")
    arguments = parser.parse_args()
    join(arguments.backend, arguments.rank, arguments.folder, arguments.addresses)
    _, local, compression = CHOICES[arguments.choice]
    strategy = building.strategy(arguments.backend, compression, local)
    keras.utils.set_random_seed(arguments.seed)
    updates = arguments.blocks * arguments.updates
    build, samples, validation = task_of(arguments.task, updates, arguments.seed)
    with strategy.scope():
        model = build()
    notes = Notes(validation, 64)
    model.fit(
        samples.batch(arguments.batch, drop_remainder=True),
        epochs=arguments.blocks,
        steps_per_epoch=arguments.updates,
        shuffle=False,
        verbose=0,
        callbacks=[*strategy.callbacks(), notes],
    )
    found = {**notes.found, "parameters": model.count_params()}
    if arguments.rank == 0:
        Path(arguments.folder, "found.json").write_text(json.dumps(found))
    strategy.processes.all_gather([0])  # rank 0 must not end first: it serves the other ranks


if __name__ == "__main__":
    main()
