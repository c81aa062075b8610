"""What each of the two hosts of links.py runs; rank 0 writes the times."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks import exchange_ranks
from benchmarks.common.runner import in_turn
from benchmarks.exchange_ranks import Exchanged
from tests.traffic.joining import join
from tfdist.compression.choice import Choice
from tfdist.step.compression import CompressedExchange

SHAPE = (400, 1000)
UNCOMPRESSED = "tfdist, no compression"
COMPRESSORS = ("fp16", "int8", "signsgd", "topk", "powersgd")


def gradients_of(rank: int, matrices: int) -> list[tf.Tensor]:
    """The gradients of one rank."""
    return [tf.random.stateless_normal(SHAPE, [rank, number]) for number in range(matrices)]


def horovod_fp16(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """Horovod's own compression."""
    import horovod.tensorflow as hvd

    return hvd.grouped_allreduce(gradients, op=hvd.Sum, compression=hvd.Compression.fp16)


def compressed(strategy: tf.distribute.Strategy, name: str, matrices: int) -> Exchanged:
    """The exchange with tfdist's compressor of that name."""
    specs = [tf.TensorSpec(SHAPE, tf.float32)] * matrices
    paths = [f"dense_{number}/kernel" for number in range(matrices)]
    with strategy.scope():
        exchange = CompressedExchange(
            Choice.of(name), specs, paths, strategy.options.bucket_bytes, seed=0
        )

    def exchanged(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        sums = exchange(gradients, tf.constant(0, tf.int64))
        return [sums[number] for number in range(matrices)]

    return exchanged


def systems_of(backend: str, matrices: int) -> tuple[tf.distribute.Strategy, dict[str, Exchanged]]:
    """The strategy under which all exchanges run, and the exchanges, first the engine's own."""
    strategy, ours = exchange_ranks.tfdist_(backend)
    if backend == "horovod":
        _, raw = exchange_ranks.raw_horovod()
        systems = {"raw Horovod": raw, "raw Horovod, `Compression.fp16`": horovod_fp16}
    else:
        systems = {"TensorFlow": exchange_ranks.all_reduce}
    systems[UNCOMPRESSED] = ours
    for name in COMPRESSORS:
        systems[f"tfdist, `{name}`"] = compressed(strategy, name, matrices)
    return strategy, systems


def step_of(
    strategy: tf.distribute.Strategy, name: str, exchanged: Exchanged
) -> Callable[[list[tf.Tensor]], list[tf.Tensor]]:
    """A traced step that exchanges gradients."""

    def step(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        # TensorFlow only sums tensors that an operation of the replica has made. `identity` does
        # this without a copy.
        return strategy.run(lambda: exchanged([tf.identity(own) for own in gradients]))

    # tfdist names Horovod's operations by the function. Operations with the same name but another
    # shape would push each other out of Horovod's cache, and be negotiated anew in each step.
    step.__name__ = re.sub(r"\W", "_", name)
    return tf.function(step)


def seconds_of(
    strategy: tf.distribute.Strategy, systems: dict[str, Exchanged], matrices: int, rounds: int
) -> dict[str, list[float]]:
    """The seconds of the slower rank in each round, by system."""
    own = gradients_of(strategy.processes.rank, matrices)
    steps = {name: step_of(strategy, name, exchanged) for name, exchanged in systems.items()}
    expected = np.sum([gradients_of(rank, matrices) for rank in range(2)], axis=0)
    for name, step in steps.items():
        totals = step(own)
        if name in (next(iter(steps)), UNCOMPRESSED):
            np.testing.assert_allclose(totals, expected, rtol=1e-5, atol=1e-5)
        step(own)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    strategy.processes.all_gather([0])  # the ranks start together, here and after each exchange
    for _, name in in_turn(list(steps), rounds):
        start = time.perf_counter_ns()
        steps[name](own)[0].numpy()
        nanoseconds = time.perf_counter_ns() - start
        seconds[name].append(int(strategy.processes.all_gather([nanoseconds]).max()) / 1e9)
    return seconds


def main() -> None:
    """Writes the seconds of each round, by system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matrices", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("backend")
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("addresses", nargs="+")
    arguments = parser.parse_args()
    join(arguments.backend, arguments.rank, arguments.folder, arguments.addresses)
    strategy, systems = systems_of(arguments.backend, arguments.matrices)
    seconds = seconds_of(strategy, systems, arguments.matrices, arguments.rounds)
    if arguments.rank == 0:
        Path(arguments.folder, "times.json").write_text(json.dumps(seconds))
    strategy.processes.all_gather([0])  # rank 0 must not end first: it serves the other rank


if __name__ == "__main__":
    main()
