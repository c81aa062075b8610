"""What each of the hosts of collectives.py runs; rank 0 writes the times."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

import tfdist
from benchmarks.all_reduce.measuring import Meter
from benchmarks.common.runner import in_turn
from tests.traffic.joining import join
from tfdist.engines.current import current

Operation = Callable[[tf.Tensor], tf.Tensor]


def ours() -> dict[str, Operation]:
    """What tfdist's exchanges call."""
    return {
        "sum": lambda vector: current().all_reduce([vector])[0],
        "gather": lambda vector: current().all_gather_parts(vector),
        "sum of a part": lambda vector: current().reduce_scatter(vector),
    }


def horovods() -> dict[str, Operation]:
    """Horovod's own, each under one name."""
    import horovod.tensorflow as hvd

    return {
        "sum": lambda vector: hvd.allreduce(vector, op=hvd.Sum, name="sum"),
        "gather": lambda vector: hvd.allgather(vector, name="gather"),
        "sum of a part": lambda vector: hvd.reducescatter(vector, op=hvd.Sum, name="part"),
    }


def tensorflows() -> dict[str, Operation]:
    """TensorFlow's own, which has no sum of a part."""
    context = tf.distribute.get_replica_context
    return {
        "sum": lambda vector: context().all_reduce(tf.distribute.ReduceOp.SUM, vector),
        "gather": lambda vector: context().all_gather(vector, axis=0),
    }


def step_of(strategy: tf.distribute.Strategy, operation: Operation) -> Operation:
    """A traced step in which a replica hands in a vector."""
    return tf.function(
        lambda vector: strategy.run(lambda: operation(tf.identity(vector))), autograph=False
    )


def main() -> None:
    """Writes the seconds of each round, by operation and system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("backend")
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("addresses", nargs="+")
    arguments = parser.parse_args()
    join(arguments.backend, arguments.rank, arguments.folder, arguments.addresses)
    strategy = tfdist.Strategy(arguments.backend)
    theirs = horovods() if arguments.backend == "horovod" else tensorflows()
    both = {"engine": theirs, "tfdist": ours()}
    steps = {
        (name, system): step_of(strategy, operation)
        for system, operations in both.items()
        for name, operation in operations.items()
    }
    # A multiple of the number of ranks.
    count = arguments.size // 4 // strategy.processes.size * strategy.processes.size
    vector = tf.random.stateless_normal([count], [arguments.rank, 0])
    meter = Meter(strategy.processes, None)
    for step in steps.values():
        step(vector)
    found: dict[str, dict[str, list[float]]] = {}
    for _, (name, system) in in_turn(list(steps), arguments.rounds):
        step = steps[name, system]
        seconds, _ = meter.measured(lambda step=step: step(vector))
        found.setdefault(name, {}).setdefault(system, []).append(seconds)
    if arguments.rank == 0:
        (arguments.folder / "times.json").write_text(json.dumps(found))
    strategy.processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
