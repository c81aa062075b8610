"""What the processes of a job of backup_workers.py run; the chief writes the results."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from benchmarks import backup_workers
from benchmarks.async_stragglers_ranks import slept

FEATURES = 32
# The first steps, in which nobody knows yet how long the workers take.
FIRST = 5


class SleepingModel(keras.Sequential):
    """A model whose training step sleeps for each sample.

    Args:
        layers: the layers.
        seconds: for a sample, by worker.
    """

    def __init__(self, layers: list, seconds: list[float]):
        super().__init__(layers)
        self._seconds = np.array(seconds, "float32")

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        seconds = tf.gather(tf.constant(self._seconds), worker)
        return super().train_step((slept(x, seconds * tf.cast(tf.shape(x)[0], tf.float32)), y))


class Watch(keras.callbacks.Callback):
    """Notes how long each step takes."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._last = 0.0

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes the time since the last step."""
        now = time.perf_counter()
        if batch >= FIRST:
            self.seconds.append(now - self._last)
        self._last = now


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--policy", choices=backup_workers.POLICIES, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--slower", type=float, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    policies = {
        "Synchronous()": tfdist.staleness.Synchronous(),
        "Synchronous(parts_per_worker=2)": tfdist.staleness.Synchronous(parts_per_worker=2),
        "Synchronous(backup=True)": tfdist.staleness.Synchronous(backup=True),
        "Synchronous(parts_per_worker=2, backup=True)": tfdist.staleness.Synchronous(2, True),
        "Synchronous(drop=1)": tfdist.staleness.Synchronous(drop=1),
        "Synchronous(parts_per_worker=2, drop=1)": tfdist.staleness.Synchronous(2, drop=1),
    }
    strategy = tfdist.ParameterServerStrategy(staleness=policies[arguments.policy])
    fast, slow = arguments.seconds, arguments.seconds * arguments.slower
    with strategy.scope():
        layers = [keras.Input((FEATURES,)), keras.layers.Dense(1)]
        model = SleepingModel(layers, [fast] * (arguments.workers - 1) + [slow])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(arguments.batch, FEATURES)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, x.sum(axis=1, keepdims=True))).repeat()
    watch = Watch()
    steps = arguments.steps + FIRST
    model.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[watch])
    report = strategy.staleness_report()
    in_vain = (report.redundant + report.late) / steps
    counts = {"redundant": in_vain, "dropped": report.dropped_parts / steps}
    arguments.path.write_text(json.dumps({"seconds": watch.seconds, **counts}))


if __name__ == "__main__":
    main()
