"""What each of the two processes of exchange.py runs; rank 0 writes the times."""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import tfdist
from benchmarks.common.runner import in_turn
from tfdist.step.totals import Totals

Exchanged = Callable[[list[tf.Tensor]], list[tf.Tensor]]


def all_reduce(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    """The exchange that a Keras optimizer calls."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)


def tensorflow_() -> tuple[tf.distribute.Strategy, Exchanged]:
    return tf.distribute.MultiWorkerMirroredStrategy(), all_reduce


def tfdist_(name: str) -> tuple[tf.distribute.Strategy, Exchanged]:
    strategy = tfdist.Strategy(name)

    def exchanged(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        specs = [tf.TensorSpec(gradient.shape, gradient.dtype) for gradient in gradients]
        totals = Totals(strategy.options, specs, [str(number) for number in range(len(specs))])
        packing = totals.packing(gradients, accumulates=False)
        return totals.sum(packing, packing.pack(gradients), tf.constant(0, tf.int64))

    return strategy, exchanged


def raw_horovod() -> tuple[tf.distribute.Strategy, Exchanged]:
    import horovod.tensorflow as hvd

    def exchanged(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        return hvd.grouped_allreduce(gradients, op=hvd.Sum)

    return tfdist.Strategy("horovod"), exchanged


SYSTEMS = {
    "TensorFlow": tensorflow_,
    "tfdist multi_worker": functools.partial(tfdist_, "multi_worker"),
    "raw Horovod": raw_horovod,
    "tfdist horovod": functools.partial(tfdist_, "horovod"),
}


def step_of(
    strategy: tf.distribute.Strategy, exchanged: Exchanged, variables: list[tf.Variable]
) -> Callable[[], tf.Tensor]:
    """A traced step that makes gradients, exchanges them, and uses all sums."""

    def replica_step() -> tf.Tensor:
        sums = exchanged([variable * 2.0 for variable in variables])
        return tf.add_n([total[0] for total in sums])

    return tf.function(lambda: strategy.run(replica_step))


def seconds_of(systems: dict[str, Any], number: int, size: int, rounds: int) -> dict[str, list]:
    """The seconds of each round, by system, for so many tensors of `size` elements."""
    variables = [tf.Variable(tf.ones([size])) for _ in range(number)]
    steps = {name: step_of(*system, variables) for name, system in systems.items()}
    for name, step in steps.items():
        total = float(step())
        assert total == 4.0 * number, f"{name}: {total}"
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _, name in in_turn(list(steps), rounds):
        start = time.perf_counter()
        float(steps[name]())
        seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Writes the seconds of each round, by number of tensors and system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, required=True)
    parser.add_argument("--tensors", type=int, nargs="+", required=True)
    parser.add_argument("--megabytes", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    systems = {name: SYSTEMS[name]() for name in arguments.systems}
    elements = int(arguments.megabytes * 1e6 / 4)
    times = {
        number: seconds_of(systems, number, elements // number, arguments.rounds)
        for number in arguments.tensors
    }
    if next(iter(systems.values()))[0].extended.should_checkpoint:
        arguments.path.write_text(json.dumps(times))


if __name__ == "__main__":
    main()
