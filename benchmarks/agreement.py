"""What it costs that the processes compare their data and their models, in one process.

Each batch of global data passes a running checksum, by which the processes compare what they have
read; it is timed as processor time per batch, beside that of a training step of a small model with
the same batch. When `fit` begins, a description of the model is made; it is timed too.

    python benchmarks/agreement.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

from tfdist.coordination import digest
from tfdist.strategies.watching import Watch


def seconds_per_batch(data: tf.data.Dataset, batches: int) -> float:
    """Processor time for each of the `batches` of `data`."""
    start = time.process_time()
    data.reduce(tf.constant(0), lambda count, batch: count + 1)
    return (time.process_time() - start) / batches


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    x = random.normal(size=(arguments.batch_size, 784)).astype("float32")
    y = random.integers(0, 10, size=arguments.batch_size)
    batches = arguments.batches
    data = tf.data.Dataset.from_tensors((x, y)).repeat(batches)
    watched = Watch().on(data, length_is_known=True)
    model = keras.Sequential(
        [keras.Input((784,)), keras.layers.Dense(128, "relu"), keras.layers.Dense(10)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(data.take(10), verbose=0)

    costs, steps = [], []
    for _ in range(arguments.rounds):
        costs.append(seconds_per_batch(watched, batches) - seconds_per_batch(data, batches))
        start = time.process_time()
        model.fit(data, verbose=0)
        steps.append((time.process_time() - start) / batches)
    start = time.perf_counter()
    size = len(json.dumps(digest.of_run(model, "fit", {})))
    seconds = time.perf_counter() - start
    cost, step = statistics.median(costs), statistics.median(steps)
    print(f"checksum {1e6 * cost:.1f} us per batch, a step {1e6 * step:.1f} us: {cost / step:.2%}")
    print(f"description of the model: {1e3 * seconds:.1f} ms, {size} characters")


if __name__ == "__main__":
    main()
