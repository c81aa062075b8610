"""What each process of a job of pulled_weights.py runs; the chief writes the bytes."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import keras
import numpy as np

import tfdist
from benchmarks.common.process import counted_here

HEADERS = 14 + 20 + 32  # bytes of a packet: of Ethernet, of IPv4, and of TCP with its time


class Bytes(keras.callbacks.Callback):
    """Notes what has crossed the device when an epoch begins, and when the last one ends."""

    def __init__(self):
        super().__init__()
        self.crossed: list[tuple[int, int]] = []

    def on_epoch_begin(self, epoch, logs=None):
        """Notes it."""
        self.crossed.append(counted_here())

    def on_train_end(self, logs=None):
        """Notes it."""
        self.crossed.append(counted_here())


def sent(arguments: argparse.Namespace, pull: str, way: str) -> tuple[float, float, int]:
    """The bytes of an update, those of headers, and the bytes of all weights and gradients."""
    waits = tfdist.staleness.SSP(1000) if way == "chief" else None  # for nobody, but the chief asks
    strategy = tfdist.Strategy(
        "parameter_server", staleness=waits, pull_compression=None if pull == "none" else pull
    )
    keras.utils.set_random_seed(0)
    with strategy.scope():
        width = arguments.width
        layers = [keras.layers.Dense(width, activation="tanh") for _ in range(arguments.layers)]
        model = keras.Sequential([keras.Input((width,)), *layers, keras.layers.Dense(10)])
        for layer in layers[: arguments.frozen]:
            layer.trainable = False
        model.compile(keras.optimizers.SGD(0.01), "mse")
    x = np.random.default_rng(0).normal(size=(8 * arguments.steps, width)).astype("float32")
    counted = Bytes()
    model.fit(x, x[:, :10], batch_size=8, epochs=2, verbose=0, callbacks=[counted])
    by_chief = model.train_function.why_chief is not None
    if by_chief != (way == "chief"):
        raise RuntimeError(f"The updates were made otherwise: {model.train_function.why_chief}")
    moved = [*model.weights, *model.trainable_variables]
    bound = sum(4 * variable.value.shape.num_elements() for variable in moved)
    before, after = counted.crossed[-2:]
    crossed, packets = ((b - a) / arguments.steps for a, b in zip(before, after))
    return crossed, HEADERS * packets, bound


def main() -> None:
    """Writes what was measured, and ends without waiting for servers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--pulls", nargs="+", required=True)
    for name in ("width", "layers", "frozen", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    arguments = parser.parse_args()
    found: dict = {"sent": {}, "headers": {}, "bound": 0}
    for way in ("workers", "chief"):
        for pull in arguments.pulls:
            number, headers, found["bound"] = sent(arguments, pull, way)
            found["sent"].setdefault(way, {})[pull] = number
            found["headers"].setdefault(way, {})[pull] = headers
    arguments.path.write_text(json.dumps(found))
    os._exit(0)


if __name__ == "__main__":
    main()
