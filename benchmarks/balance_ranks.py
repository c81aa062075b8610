"""What each rank of balance.py runs; rank 0 writes how long its steps took."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

FEATURES = 64


class Delay(keras.layers.Layer):
    """Sleeps for each sample that passes.

    Attributes:
        seconds: for a sample, in this rank. It is set later: layers are made alike in all ranks.
    """

    seconds = 0.0

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The inputs, later."""

        def sleep(batch: np.ndarray) -> np.ndarray:
            time.sleep(self.seconds * len(batch))
            return batch

        delayed = tf.numpy_function(sleep, [inputs], inputs.dtype)
        return tf.ensure_shape(delayed, inputs.shape)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        """The shape of the inputs."""
        return input_shape


class Watch(keras.callbacks.Callback):
    """Notes how long each step takes, and changes the delay of this rank in the middle."""

    decides_in_batches = False

    def __init__(self, delay: Delay, seconds: float, steps: int):
        super().__init__()
        self.seconds: list[float] = []
        self._delay, self._later, self._steps = delay, seconds, steps

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Notes the step before, with all that is done between steps; changes the delay in time."""
        self._note(batch > 0)
        if batch == self._steps:
            self._delay.seconds = self._later

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the last step."""
        self._note(True)

    def _note(self, ended: bool) -> None:
        now = time.perf_counter()
        if ended:
            self.seconds.append(now - self._begun)
        self._begun = now


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--parts", choices=("even", "balanced"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--slower", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    strategy = tfdist.Strategy(balance=arguments.parts == "balanced")
    rank, last = strategy.processes.rank, strategy.processes.size - 1
    fast, slow = arguments.seconds, arguments.seconds * arguments.slower
    delay = Delay()
    with strategy.scope():
        dense = keras.layers.Dense(FEATURES, activation="relu")
        model = keras.Sequential([keras.Input((FEATURES,)), delay, dense, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    delay.seconds = slow if rank == last else fast
    watch = Watch(delay, slow if rank == 0 else fast, arguments.steps)
    x = np.random.default_rng(0).normal(size=(arguments.batch, FEATURES)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, x.sum(axis=1, keepdims=True))).repeat()
    steps = 2 * arguments.steps
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[watch])
    if rank == 0:
        arguments.path.write_text(json.dumps({"seconds": watch.seconds}))


if __name__ == "__main__":
    main()
