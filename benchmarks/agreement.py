"""The cost of comparing data and models between processes.

Each process takes its part of every global batch, and computes a running checksum in the same step
of its input pipeline. The benchmark measures the processor time of this step with and without the
checksum, and the time of a training step of a small model in all processes. When `fit` begins, a
description of the model is made; the benchmark times this too.

    python -m tfdist run -n 2 --strategy multi_worker -m benchmarks.agreement
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.common import machine
from tfdist.data import shards
from tfdist.processes import digest
from tfdist.processes.watching import Watch

# Pairs of measurements with and without checksum; median and quartiles of the costs are printed.
_PAIRS = 21


def _without_checksum(data: tf.data.Dataset, function: Callable) -> tf.data.Dataset:
    """The step of the pipeline that contains the checksum, here without the checksum."""
    zero = tf.zeros([], tf.int64)
    return data.scan(zero, lambda state, batch: (state, function(batch)))


def _with_checksum(data: tf.data.Dataset, function: Callable) -> tf.data.Dataset:
    return Watch().on(data, True, function)


def _processor_seconds(data: tf.data.Dataset) -> float:
    """The processor time for each batch of `data`."""
    start = time.process_time()
    batches = data.reduce(tf.constant(0), lambda count, batch: count + 1)
    return (time.process_time() - start) / int(batches)


def main() -> None:
    """Prints the figures, in rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="samples in a global batch")
    parser.add_argument("--batches", type=int, default=500, help="in each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    strategy = tfdist.Strategy("auto")
    random = np.random.default_rng(0)
    x = random.normal(size=(arguments.batch_size, 784)).astype("float32")
    y = random.integers(0, 10, size=arguments.batch_size)
    data = tf.data.Dataset.from_tensors((x, y)).repeat(arguments.batches)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((784,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
        )
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    steps = []
    for _ in range(arguments.rounds):
        start = time.perf_counter()
        model.fit(data, verbose=0)
        steps.append((time.perf_counter() - start) / arguments.batches)
    step = statistics.median(steps)
    start = time.perf_counter()
    size = len(json.dumps(digest.of_run(model, "fit", {})))
    described = time.perf_counter() - start
    if not strategy.is_chief:
        return
    plain, noted = (
        shards.of_global_batches(data, 0, 1, 2, map_batches)
        for map_batches in (_without_checksum, _with_checksum)
    )
    costs = [_processor_seconds(noted) - _processor_seconds(plain) for _ in range(_PAIRS)]
    low, cost, high = statistics.quantiles(costs, n=4)
    print(machine.measured_with("TensorFlow", "Keras"))
    print(f"a step in {strategy.processes.size} processes: {1e3 * step:.2f} ms")
    print(f"checksum: {1e6 * cost:.0f} us ({1e6 * low:.0f}-{1e6 * high:.0f}) of processor time")
    print(f"ratio {cost / step:.2%}")
    print(f"description of the model: {1e3 * described:.1f} ms, {size} characters")


if __name__ == "__main__":
    main()
