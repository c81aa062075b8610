"""What each rank of small_sums.py runs; rank 0 writes the times."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import tensorflow as tf

import tfdist
from benchmarks.algorithms_ranks import Step, Trial
from benchmarks.all_reduce import plan
from benchmarks.all_reduce.measuring import Meter
from tests.traffic.joining import join
from tfdist.step.exchange import all_reduce


def tensorflow_(vector: tf.Tensor) -> tf.Tensor:
    """TensorFlow's ring, as its own strategy calls it."""
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, vector)


def ours(vector: tf.Tensor) -> tf.Tensor:
    """What tfdist does with a vector that is as long as this one."""
    return all_reduce([vector])[0]


def step_of(strategy: tf.distribute.Strategy, exchanged: Step) -> Step:
    """A traced step that sums a vector."""
    return tf.function(
        lambda vector: strategy.run(lambda: exchanged(tf.identity(vector))), autograph=False
    )


def main() -> None:
    """Writes the seconds of each round, by size and system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="in bytes")
    parser.add_argument("--rounds", type=int, required=True)
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+", help="a host of its own; not under tfdist run")
    arguments = parser.parse_args()
    if arguments.host:
        rank, folder, *addresses = arguments.host
        join("multi_worker", int(rank), Path(folder), addresses)
    strategy = tfdist.Strategy("multi_worker")
    processes = strategy.processes
    meter = Meter(processes, None)
    found: dict[str, dict[str, list[float]]] = {}
    for size in arguments.sizes:
        steps = {"TensorFlow": step_of(strategy, tensorflow_), "tfdist": step_of(strategy, ours)}
        trial = Trial(meter, size, processes)
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            trial.trace(step)
        for number in range(-2, arguments.rounds):
            for name in plan.order(list(steps), number):
                measured, _ = trial.measured(name, steps[name])
                if number >= 0:
                    seconds[name].append(measured)
        found[str(size)] = seconds
    if processes.is_chief:
        arguments.path.write_text(json.dumps(found))
    processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
