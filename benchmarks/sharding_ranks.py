"""What each process of a job of sharding.py runs; rank 0 writes what all ranks measured."""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.common.process import begin_peak, resident, sent_here
from benchmarks.side_by_side import models_keras
from benchmarks.side_by_side.work import WORKS
from tests.traffic.joining import join

# Of all ranks together. A sample of the Transformer has 64 words.
BATCH, WORDS_BATCH = 32, 16
CHAIN, WORDS = "chain", "words"
MODELS = (CHAIN, WORDS)


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--sharding", required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--accumulation-steps", type=int, default=1)
    parser.add_argument("--steps", type=int, required=True)
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+")
    return parser.parse_args()


def model_of(strategy: tfdist.Strategy, layers: int, width: int) -> keras.Model:
    """A chain of equal Dense layers, compiled with Adam."""
    with strategy.scope():
        chain = [keras.layers.Dense(width, activation="tanh") for _ in range(layers)]
        model = keras.Sequential([keras.Input((width,)), *chain])
        model.compile("adam", "mse")
    return model


def batches(width: int) -> tf.data.Dataset:
    """The same batch again and again, for `model_of`."""
    x = np.random.default_rng(0).normal(size=(BATCH, width)).astype("float32")
    return tf.data.Dataset.from_tensors((x, x)).repeat()


def transformer_of(strategy: tfdist.Strategy) -> keras.Model:
    """A Transformer with a large vocabulary, compiled with Adam."""
    with strategy.scope():
        model = models_keras.build(WORDS, keras)
        model.compile("adam", models_keras.loss(keras))
    return model


def texts() -> tf.data.Dataset:
    """The same batch again and again, for `transformer_of`."""
    x, y = (part[:WORDS_BATCH] for part in WORKS[WORDS].samples(WORDS_BATCH))
    return tf.data.Dataset.from_tensors((x, y)).repeat()


class Ends(keras.callbacks.Callback):
    """When batches have ended. The first update counts nothing, as `fit` begins with it."""

    def __init__(self) -> None:
        super().__init__()
        self._times: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes the time."""
        self._times.append(time.perf_counter())

    def seconds(self, batches_of_update: int) -> float:
        """The median time of an update."""
        updates = self._times[batches_of_update - 1 :: batches_of_update]
        return statistics.median(end - start for start, end in itertools.pairwise(updates))


def main() -> None:
    """Measures the peak memory above an idle process, bytes and seconds of a step."""
    arguments = parse_arguments()
    sharding = None if arguments.sharding == "none" else arguments.sharding
    interface = "lo"
    if arguments.host:
        rank, folder, *addresses = arguments.host
        join(arguments.strategy, int(rank), Path(folder), addresses)
        interface = "eth0"
    strategy = tfdist.Strategy(
        arguments.strategy, sharding=sharding, accumulation_steps=arguments.accumulation_steps
    )
    strategy.processes.all_gather([0])
    tf.function(lambda a: tf.matmul(a, a))(tf.ones([64, 64]))
    gc.collect()
    idle = resident("VmRSS")
    begin_peak()
    is_chain, sizes = arguments.model == CHAIN, (arguments.layers, arguments.width)
    model = model_of(strategy, *sizes) if is_chain else transformer_of(strategy)
    making = resident("VmHWM") - idle
    data = batches(arguments.width) if is_chain else texts()
    warm = 2 * arguments.accumulation_steps
    model.fit(data, epochs=1, steps_per_epoch=warm, verbose=0)
    begin_peak()
    strategy.processes.all_gather([0])
    sent = sent_here(interface)
    steps = arguments.steps * arguments.accumulation_steps
    ends = Ends()
    model.fit(data, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[ends])
    strategy.processes.all_gather([0])
    sent = sent_here(interface) - sent
    peaks = strategy.processes.all_gather([resident("VmHWM") - idle, making]).max(0)
    found = {
        "parameters": model.count_params(),
        "peak": int(peaks[0]),
        "making": int(peaks[1]),
        "sent": sent / arguments.steps / (1 if arguments.host else strategy.processes.size),
        "seconds": ends.seconds(arguments.accumulation_steps),
    }
    if strategy.processes.is_chief:
        arguments.path.write_text(json.dumps(found))
    strategy.processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
