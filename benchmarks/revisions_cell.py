"""What a process of `revisions.py` runs, with what is public in all revisions.

Nothing here may import a part of tfdist that a refactoring may move.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

import tfdist
from benchmarks import step_overhead_cell
from benchmarks.common import turns

REPLICAS = 2
ROUND_SECONDS = 0.1
MEGABYTES = 25
# Calls in a round of the exchange.
CALLS = 4
WARM_UP = 3


@dataclasses.dataclass(frozen=True)
class Measured:
    """What is measured.

    Attributes:
        call: does once what is measured.
        result: the result of the first call, a number that both revisions must agree on.
        calls: the number of calls in a round. All ranks have to make equally many calls.
        leads: whether this process measures: it is the only one, or the first of several.
    """

    call: Callable[[], object]
    result: float
    calls: int
    leads: bool = True


def step(variables: int) -> Measured:
    """A training step of a small model."""
    cell = argparse.Namespace(
        variables=variables, steps_per_execution=1, optimizer="sgd", dynamic=False
    )
    strategy = step_overhead_cell.make_strategy("tfdist", REPLICAS)
    call = step_overhead_cell.make_train_call(strategy, cell)
    loss = float(call()["loss"])
    return Measured(call, loss, step_overhead_cell.calls_per_round(call, ROUND_SECONDS))


def exchange(engine: str, gradients: int) -> Measured:
    """An exchange and update of so many gradients."""
    strategy = tfdist.Strategy(engine)
    size = int(MEGABYTES * 1e6 / 4) // gradients
    with strategy.scope():
        weights = [keras.Variable(np.zeros(size, "float32")) for _ in range(gradients)]
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD(0.01))
        optimizer.build(weights)
    own = [tf.fill([size], 1.0 + number) for number in range(gradients)]

    @tf.function
    def apply() -> tf.Tensor:
        strategy.run(lambda: optimizer.apply([tf.identity(one) for one in own], weights))
        return tf.add_n([tf.reduce_sum(weight.value[:1]) for weight in weights])

    def call() -> float:
        return float(apply())

    return Measured(call, call(), CALLS, strategy.extended.should_checkpoint)


def main() -> None:
    """Measures what the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--variables", type=int)
    parser.add_argument("--gradients", type=int)
    parser.add_argument("--engine", choices=("multi_worker", "horovod"))
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    if arguments.engine:
        measured = exchange(arguments.engine, arguments.gradients)
    else:
        tfdist.testing.virtual_devices(REPLICAS)
        measured = step(arguments.variables)
    for _ in range(WARM_UP):
        measured.call()
    gc.collect()
    gc.disable()
    if measured.leads:
        found = {"package": tfdist.__file__, "result": measured.result, "calls": measured.calls}
        turns.take_turns(found, lambda n: step_overhead_cell.time_calls(measured.call, n))
    else:
        step_overhead_cell.time_calls(measured.call, arguments.rounds * measured.calls)


if __name__ == "__main__":
    main()
