"""What each rank of algorithms.py runs; rank 0 writes what was measured."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.all_reduce import model, plan
from benchmarks.all_reduce.execution import Messages, ScheduledEngine
from benchmarks.all_reduce.measuring import Meter, ping_seconds
from benchmarks.common.runner import in_turn
from tests.traffic.joining import join
from tfdist.engines.contract import Engine
from tfdist.engines.processes import Processes
from tfdist.step.exchange import all_reduce

Step = Callable[[tf.Tensor], tf.Tensor]
# The sums of vectors with these values are exact in float32.
VALUES = 256


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


def checked(steps: dict[str, Step], size: int, processes: Processes) -> tf.Tensor:
    """This rank's vector, of which all steps made the right sum. They have run twice then."""
    values = np.resize(np.arange(VALUES, dtype=np.float32), size // 4)
    own = tf.constant(values * (processes.rank + 1))
    expected = values * (processes.size * (processes.size + 1) // 2)
    for name, step in steps.items():
        for _ in range(2):
            np.testing.assert_array_equal(step(own), expected, err_msg=name)
    return own


def measured_in_turn(
    meter: Meter, steps: dict[str, Step], own: tf.Tensor, rounds: int
) -> dict[str, dict[str, list]]:
    """The seconds and the sent bytes of each round, by system."""
    found: dict[str, dict[str, list]] = {name: {"seconds": [], "sent": []} for name in steps}
    for _, name in in_turn(list(steps), rounds):
        seconds, sent = meter.measured(functools.partial(_ended, steps[name], own))
        found[name]["seconds"].append(seconds)
        found[name]["sent"].append(sent)
    return found


def _ended(step: Step, own: tf.Tensor) -> None:
    """Returns when the sum is there."""
    step(own).numpy()


def main() -> None:
    """Writes the link, and for each size the seconds and bytes of each system."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--backend", choices=plan.BACKENDS, required=True)
    parser.add_argument("--algorithms", nargs="*", default=[])
    parser.add_argument("--sizes", type=int, nargs="+", required=True, help="in bytes")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--most-seconds", type=float, required=True)
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+", help="a host of its own; not under tfdist run")
    arguments = parser.parse_args()
    if arguments.host:
        rank, folder, *addresses = arguments.host
        join(arguments.backend, int(rank), Path(folder), addresses)
    strategy: Any = tfdist.Strategy(arguments.backend)
    processes = strategy.processes
    messages = Messages(processes.rank, processes.size)
    found: dict[str, Any] = {"sizes": {}}
    link = None
    if arguments.backend == plan.MULTI_WORKER:
        times = {size: ping_seconds(processes, messages, size) for size in plan.PING_SIZES}
        link = model.fitted(times)
        found["link"] = {"alpha": link.alpha, "beta": link.beta, "pings": times}
    meter = Meter(processes, "eth0" if arguments.host else None)
    for size in arguments.sizes:
        names, rounds = plan.runs(arguments, processes.size, size, link)
        steps = steps_of(strategy, arguments.backend, names, messages, size)
        own = checked(steps, size, processes)
        found["sizes"][str(size)] = measured_in_turn(meter, steps, own, rounds)
    if processes.is_chief:
        arguments.path.write_text(json.dumps(found))
    processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
