"""What each rank of hierarchy.py runs; rank 0 writes the bytes and the times."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.common.runner import in_turn
from benchmarks.exchange_ranks import Exchanged, all_reduce
from benchmarks.links_ranks import step_of
from tests.traffic.joining import join
from tfdist.engines.current import own_number
from tfdist.step.totals import Totals

OPTIONS = {
    "tfdist, `ring`": {"exchange": "ring"},
    "tfdist, `hierarchical`": {"exchange": "hierarchical"},
    "tfdist, `ring`, topk": {"exchange": "ring", "compression": "topk"},
    "tfdist, `hierarchical`, topk": {"exchange": "hierarchical", "compression": "topk"},
}


def systems_of(
    backend: str, shapes: list[list[int]]
) -> dict[str, tuple[tf.distribute.Strategy, Exchanged]]:
    """Strategies and their exchanges; the first is the engine's own."""
    made = {name: tfdist.Strategy(backend, **options) for name, options in OPTIONS.items()}
    first = next(iter(made.values()))
    if backend == "horovod":
        import horovod.tensorflow as hvd

        def raw(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
            return hvd.grouped_allreduce(gradients, op=hvd.Sum)

        systems = {"raw Horovod": (first, raw)}
    else:
        systems = {"TensorFlow": (first, all_reduce)}
    for name, strategy in made.items():
        with strategy.scope():
            specs = [tf.TensorSpec(shape) for shape in shapes]
            totals = Totals(strategy.options, specs, [f"{n}/kernel" for n in range(len(specs))])

        def exchanged(gradients: list[tf.Tensor], totals: Totals = totals) -> list[tf.Tensor]:
            packing = totals.packing(gradients, accumulates=False)
            return totals.sum(packing, packing.pack(gradients), tf.constant(0, tf.int64))

        systems[name] = strategy, exchanged
    return systems


def traced(
    name: str, strategy: tf.distribute.Strategy, exchanged: Exchanged, shapes: list[list[int]]
) -> Callable[[], list[tf.Tensor]]:
    """A step in which each replica exchanges gradients of its own; the first replica's sums."""

    def of_replica(own: list[tf.Tensor]) -> list[tf.Tensor]:
        return exchanged([gradient * tf.cast(own_number() + 1, tf.float32) for gradient in own])

    step = step_of(strategy, name, of_replica)
    gradients = [tf.random.stateless_normal(shape, [1, 2]) for shape in shapes]

    def run() -> list[tf.Tensor]:
        return [strategy.experimental_local_results(total)[0] for total in step(gradients)]

    return run


def sent(interface: str = "eth0") -> int:
    """The bytes that have left this host."""
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def measured(
    systems: dict[str, tuple[tf.distribute.Strategy, Exchanged]],
    shapes: list[list[int]],
    rounds: int,
) -> dict[str, dict[str, list[float]]]:
    """For each system, in each round: the slowest rank's seconds, and the most that a host sent."""
    steps = {n: traced(n, *system, shapes) for n, system in systems.items()}
    strategy = next(iter(systems.values()))[0]
    replicas = strategy.num_replicas_in_sync
    expected = [
        tf.random.stateless_normal(shape, [1, 2]) * (replicas * (replicas + 1) / 2)
        for shape in shapes
    ]
    for name, step in steps.items():
        for total, wanted in zip(step(), expected):
            if "topk" not in name:
                np.testing.assert_allclose(total, wanted, rtol=1e-5, atol=1e-5, err_msg=name)
        step()
    found: dict[str, dict[str, list[float]]] = {n: {"seconds": [], "bytes": []} for n in steps}
    processes = strategy.processes
    processes.all_gather([0])  # the ranks start together, here and after each exchange
    for _, name in in_turn(list(steps), rounds):
        before, start = sent(), time.perf_counter_ns()
        steps[name]()[0].numpy()
        nanoseconds = time.perf_counter_ns() - start
        slowest = int(processes.all_gather([nanoseconds]).max())
        # All have exchanged, so what the others of this host send counts too.
        size = sent() - before
        found[name]["seconds"].append(slowest / 1e9)
        found[name]["bytes"].append(int(processes.all_gather([size]).max()))
    return found


def main() -> None:
    """Writes what was measured, by system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensors", type=int, required=True)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("backend")
    parser.add_argument("rank", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("addresses", nargs="+")
    arguments = parser.parse_args()
    join(arguments.backend, arguments.rank, arguments.folder, arguments.addresses)
    shapes = [[arguments.elements]] * arguments.tensors
    systems = systems_of(arguments.backend, shapes)
    found = measured(systems, shapes, arguments.rounds)
    if arguments.rank == 0:
        Path(arguments.folder, "found.json").write_text(json.dumps(found))
    next(iter(systems.values()))[0].processes.all_gather([0])  # rank 0 serves the others


if __name__ == "__main__":
    main()
