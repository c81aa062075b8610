"""What `codecs.py` measures, in a process of its own; prints its result as a JSON line.

The times of all systems are measured in one process, in turn (ABBA). The peak memory of each system
is measured in a process of its own, because peak memory is a property of a process.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tfdist
from benchmarks.common.runner import in_turn
from tfdist.compression import Compressor, Result, State, Step

# Options where the default would not do. In a standard normal vector, 4.6 % of the elements reach a
# magnitude of 2. They nearly fill the room that `threshold` has by default.
OPTIONS: dict[str, dict[str, Any]] = {
    "noop": {"not_training": True},
    "threshold": {"threshold": 2.0},
    "dgc": {"ratio": 0.01},
}
TOP_K = 0.01
# Behind the name of a compressor, whose payloads are gathered.
TWICE = ", two payloads"

Call = Callable[[], object]


def shape_of(size: int, per_tensor: bool) -> list[int]:
    """A matrix as square as `size` allows for a compressor that sees shapes, else a vector."""
    if not per_tensor:
        return [size]
    rows = next(rows for rows in range(math.isqrt(size), 0, -1) if size % rows == 0)
    return [rows, size // rows]


def make_gradients(shape: list[int], tensors: int) -> list[tf.Tensor]:
    """Standard normal numbers, made by one operation.

    TensorFlow keeps the memory of further operations, and would use it again during measurements.
    """
    return [
        tf.raw_ops.StatelessRandomNormal(shape=shape, seed=[0, index]) for index in range(tensors)
    ]


def exchange(
    codec: Compressor, gradient: tf.Tensor, state: State, step: Step, replicas: int
) -> Result:
    """One step as tfdist.step.compression does it, where so many replicas send the same."""
    steps = codec.exchange(gradient, state, step)
    payload = next(steps)
    while True:
        summed = codec.aggregation == "sum"
        received = payload if summed else tuple(tf.stack([part] * replicas) for part in payload)
        try:
            payload = steps.send(received)
        except StopIteration as end:
            return end.value


def codec_call(codec: Compressor, gradients: list[tf.Tensor], replicas: int) -> Call:
    """A function that encodes `gradients` once, with the state of the last call, and decodes.

    The graph returns all totals and the whole state: TensorFlow would leave out work whose results
    are used only in part. Seeds are arguments: with constants, TensorFlow would compute the results
    only once.
    """
    states = [codec.init(tf.TensorSpec(g.shape, g.dtype)) for g in gradients]
    calls = 0

    @tf.function
    def step(gradients: list, states: list, seeds: tf.Tensor) -> tuple[list, list]:
        results = [
            exchange(codec, gradient, state, Step(seed, seed), replicas)
            for gradient, state, seed in zip(gradients, states, tf.unstack(seeds))
        ]
        return [result.total for result in results], [result.state for result in results]

    def call() -> tuple[list, list]:
        nonlocal states, calls
        calls += 1
        seeds = tf.constant([[calls, index] for index in range(len(gradients))])
        totals, states = step(gradients, states, seeds)
        return totals, states

    return call


def plain_call(system: str, gradients: list[tf.Tensor]) -> Call:
    """A function that copies `gradients`, or finds the largest elements with TensorFlow's top_k."""

    def largest(gradient: tf.Tensor) -> Any:
        return tf.math.top_k(tf.abs(gradient), max(1, int(TOP_K * math.prod(gradient.shape))))

    work = largest if system == "top_k" else lambda gradient: tf.raw_ops.DeepCopy(x=gradient)
    step = tf.function(lambda gradients: [work(gradient) for gradient in gradients])
    return lambda: step(gradients)


def make_call(system: str, gradients: dict[bool, list[tf.Tensor]]) -> tuple[Call, int | None]:
    """A call of `system`, and the bytes of its payload.

    Args:
        system: a compressor's name, or that and `TWICE`, which decodes two payloads; "copy" or
            "top_k".
        gradients: as vectors (False) and as matrices (True).
    """
    if system in ("copy", "top_k"):
        return plain_call(system, gradients[False]), None
    name = system.removesuffix(TWICE)
    codec = tfdist.compression.get(name, **OPTIONS.get(name, {}))
    mine = gradients[codec.per_tensor]
    wire = sum(codec.wire_bytes(tf.TensorSpec(g.shape, g.dtype)) for g in mine)
    return codec_call(codec, mine, 1 if name == system else 2), wire


def make_all_gradients(elements: int, tensors: int) -> dict[bool, list[tf.Tensor]]:
    """`elements` numbers as `tensors` vectors, and the same memory as `tensors` matrices."""
    vectors = make_gradients([elements // tensors], tensors)
    shape = shape_of(elements // tensors, per_tensor=True)
    return {False: vectors, True: [tf.reshape(vector, shape) for vector in vectors]}


def seconds_of(call: Call) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure_times(cell: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds by number of tensors and system, one per round."""
    times: dict[str, dict[str, list[float]]] = {}
    for tensors in cell.tensors:
        gradients = make_all_gradients(cell.elements, tensors)
        calls = {system: make_call(system, gradients)[0] for system in cell.systems}
        for call in calls.values():
            call()  # builds the graph
        rounds: dict[str, list[float]] = {system: [] for system in calls}
        for _, system in in_turn(list(calls), cell.rounds):
            rounds[system].append(seconds_of(calls[system]))
        times[str(tensors)] = rounds
    return times


def measure_memory(cell: argparse.Namespace) -> dict[str, int | None]:
    """The peak memory of one system beyond the gradients, and the bytes of its payload."""
    gradients = make_all_gradients(cell.elements, cell.tensors[0])
    before = peak_bytes()
    call, wire = make_call(cell.systems[0], gradients)
    for _ in range(3):
        call()
    return {"extra_bytes": peak_bytes() - before, "payload_bytes": wire}


def peak_bytes() -> int:
    """The most memory that this process has had in use."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Measures what the command line describes."""
    names = tfdist.compression.available()
    systems = ["copy", "top_k", *names, *(f"{name}{TWICE}" for name in names)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems)
    parser.add_argument("--tensors", type=int, nargs="+", required=True)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=0, help="0: memory and payload instead")
    cell = parser.parse_args()
    print(json.dumps(measure_times(cell) if cell.rounds else measure_memory(cell)))


if __name__ == "__main__":
    main()
