"""What each rank of algorithms.py runs; rank 0 writes what was measured."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.all_reduce import plan
from benchmarks.all_reduce.execution import Messages, ScheduledEngine
from benchmarks.all_reduce.measuring import Meter, measured_link
from tests.traffic.joining import join
from tfdist.engines.contract import Engine
from tfdist.engines.processes import Processes
from tfdist.plan.alpha_beta import Link
from tfdist.step.exchange import all_reduce

Step = Callable[[tf.Tensor], tf.Tensor]
# The vectors repeat so many values: a prime, so that parts that have changed places show. The sums
# are exact in float32.
VALUES = 251


def one_message(vector: tf.Tensor) -> tf.Tensor:
    """TensorFlow's ring with the whole vector in one operation."""
    return tf.distribute.get_strategy().engine.all_reduce([vector])[0]


def in_pieces(vector: tf.Tensor) -> tf.Tensor:
    """What tfdist does: vectors longer than `bucket_bytes` travel in pieces."""
    return all_reduce([vector])[0]


def raw_horovod(vector: tf.Tensor) -> tf.Tensor:
    import horovod.tensorflow as hvd

    return hvd.allreduce(vector, op=hvd.Sum)


@contextlib.contextmanager
def engine_of(strategy: Any, engine: Engine) -> Iterator[None]:
    """In this context steps are traced with that engine."""
    before, strategy.engine = strategy.engine, engine
    yield
    strategy.engine = before


def step_of(strategy: Any, engine: Engine, name: str, exchanged: Step, size: int) -> Step:
    """A traced step that sums a vector of `size` bytes."""

    def step(vector: tf.Tensor) -> tf.Tensor:
        with engine_of(strategy, engine):
            return strategy.run(lambda: exchanged(tf.identity(vector)))

    # Horovod's operations of the same name but other shapes would push each other out of its cache.
    step.__name__ = f"{plan.identifier(name)}_{size}"
    return tf.function(step, autograph=False)


def steps_of(
    strategy: Any, backend: str, names: list[str], messages: Messages, size: int
) -> dict[str, Step]:
    """The step of each system."""
    steps = {}
    for name in names:
        if name in plan.ALGORITHMS:
            schedule = plan.ALGORITHMS[name](strategy.processes.size)
            engine = ScheduledEngine(strategy.engine, schedule, messages)
            steps[name] = step_of(strategy, engine, name, in_pieces, size)
        else:
            exchanged = {plan.HOROVOD: raw_horovod, plan.ONE_MESSAGE: one_message}
            how = exchanged.get(name, in_pieces)
            steps[name] = step_of(strategy, strategy.engine, name, how, size)
    return steps


class Trial:
    """Exchanges whose sums are checked.

    Args:
        meter: of this process.
        size: of the vector, in bytes.
        processes: of the job.
    """

    def __init__(self, meter: Meter, size: int, processes: Processes):
        self._meter = meter
        values = np.resize(np.arange(VALUES, dtype=np.float32), size // 4)
        # The sum tells how often each rank's vector is in it.
        self._own = tf.constant(values * 2**processes.rank)
        self._expected = values * (2**processes.size - 1)

    def trace(self, step: Any) -> None:
        """Traces a step, which takes no part in the measured time then."""
        step.get_concrete_function(self._own)

    def measured(self, name: str, step: Step) -> tuple[float, int]:
        """The seconds of an exchange, and the bytes sent.

        Args:
            name: of the system.
            step: which exchanges.

        Raises:
            RuntimeError: when the sum is not the exact one.
        """
        sums: list[np.ndarray] = []
        found = self._meter.measured(lambda: sums.append(step(self._own).numpy()))
        if not np.array_equal(sums[0], self._expected):
            (wrong,) = np.nonzero(sums[0] != self._expected)
            raise RuntimeError(
                f"{name} sums {self._own.shape[0]} numbers wrongly. Received: {sums[0][wrong[0]]} "
                f"at place {wrong[0]}, instead of {self._expected[wrong[0]]}; {len(wrong)} of them"
            )
        return found


def measured_in_turn(
    trial: Trial, steps: dict[str, Step], arguments: argparse.Namespace
) -> dict[str, dict[str, list]]:
    """The seconds and the sent bytes of each round, by system; the first system is a peer."""
    found: dict[str, dict[str, list]] = {name: {"seconds": [], "sent": []} for name in steps}

    def measure_each(names: list[str], number: int) -> dict[str, float]:
        seconds = {}
        for name in plan.order(names, number):
            measured = trial.measured(name, steps[name])
            seconds[name] = measured[0]
            if number >= 0:
                found[name]["seconds"].append(measured[0])
                found[name]["sent"].append(measured[1])
        return seconds

    names = list(steps)
    for step in steps.values():
        trial.trace(step)
    # The first exchange also connects, and makes TensorFlow prepare its graph.
    if measure_each(names, -2)[names[0]] < plan.SHORT_SECONDS:
        measure_each(names, -1)
    times = measure_each(names, 0)
    again = plan.repeated(times, times[names[0]], arguments.most_seconds)
    all_seconds = sum(times[name] for name in again)
    for number in range(1, plan.rounds(all_seconds, times[names[0]], arguments)):
        measure_each(again, number)
    return found


def main() -> None:
    """Writes the link, and for each size the seconds and bytes of each system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--backend", choices=plan.BACKENDS, required=True)
    parser.add_argument("--algorithms", nargs="*", default=[])
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="in bytes")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--most-seconds", type=float, required=True)
    parser.add_argument("--size-seconds", type=float, required=True)
    parser.add_argument(
        "--link", type=float, nargs=2, help="α and β, which this backend cannot say"
    )
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+", help="a host of its own; not under tfdist run")
    arguments = parser.parse_args()
    if arguments.host:
        rank, folder, *addresses = arguments.host
        join(arguments.backend, int(rank), Path(folder), addresses)
    strategy: Any = tfdist.Strategy(arguments.backend, exchange="ring")
    processes = strategy.processes
    messages = Messages(processes.rank, processes.size)
    found: dict[str, Any] = {"sizes": {}}
    link = Link(*arguments.link) if arguments.link else None
    if arguments.backend == plan.MULTI_WORKER:
        link = measured_link(strategy.engine, messages)
        found["link"] = dataclasses.asdict(link)
    meter = Meter(processes, "eth0" if arguments.host else None)
    for size in arguments.sizes:
        names = plan.chosen(arguments, processes.size, size, link)
        steps = steps_of(strategy, arguments.backend, names, messages, size)
        trial = Trial(meter, size, processes)
        found["sizes"][str(size)] = measured_in_turn(trial, steps, arguments) if names else {}
    if processes.is_chief:
        arguments.path.write_text(json.dumps(found))
    processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
