"""Measures all-reduces of several sizes, and how fast each rank computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.checkup.judging import slow_ranks
from tfdist.checkup.machine import Facts
from tfdist.checkup.report import Link, Sum, slowest_of
from tfdist.engines.processes import Processes
from tfdist.step import exchange
from tfdist.strategies.multi_process import MultiProcessStrategy

SIZES = tuple(10**power for power in range(3, 9))  # bytes: 1 kB to 100 MB
_TOO_LONG = 2.0  # seconds
_MOST_EXPECTED = 10.0
_ENOUGH_SECONDS = 0.3
_TIMES = 10
# A sum needs its input, its result, and both in pieces; and room is left for the rest.
_COPIES = 6
_TRIES = 3  # what else runs may disturb a measurement
_SIDE = 512  # of the matrices that each rank multiplies


def sums_of(
    strategy: MultiProcessStrategy, links: Sequence[Link], facts: Sequence[Facts]
) -> tuple[list[Sum], str]:
    """Measures all-reduces as steps make them. All processes call it.

    Args:
        strategy: the strategy.
        links: between the ranks.
        facts: about the ranks.

    Returns:
        The sums, and why there are not all of `SIZES`: "" if there are.
    """
    found: list[Sum] = []
    room = min(fact.available_bytes / _ranks_at(facts, fact.place) for fact in facts)
    for size in SIZES:
        last = found[-1].seconds if found else 0.0
        if last > _TOO_LONG or 10 * last > _MOST_EXPECTED:
            return found, f"all-reduces of {size:,} bytes and more would take too long"
        if _COPIES * size > room:
            return found, f"there is not enough memory for all-reduces of {size:,} bytes"
        seconds = _shortest(strategy.processes, _sum_of(strategy, size))
        found.append(Sum(size, seconds, ring_seconds(size, len(facts), slowest_of(links))))
    return found, ""


def ring_seconds(size: int, ranks: int, link: Link) -> float:
    """How long a ring takes to sum `size` bytes, if all of its links are as `link`.

    In 2(N - 1) rounds each of N ranks gives one N-th to the next one: Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations" (JPDC 69, 2009).

    Example:

    >>> from tfdist.checkup.report import Link
    >>> from tfdist.checkup.sums import ring_seconds
    >>> ring_seconds(4_000_000, 4, Link((0, 1), True, 0.001, 0.002, 1e9))
    0.012
    """
    rounds = 2 * (ranks - 1)
    return rounds * (link.latency_seconds + size / ranks / link.bandwidth_bytes_per_second)


def compute_seconds(strategy: MultiProcessStrategy) -> list[float]:
    """How long each rank takes to multiply two matrices, while all do. All processes call it."""
    with tf.device(strategy.extended.worker_devices[0]):
        matrix = tf.random.stateless_normal([_SIDE, _SIDE], [1, 2])

    def multiply() -> None:
        tf.linalg.trace(tf.matmul(matrix, matrix)).numpy()

    multiply()
    found = [float("inf")] * strategy.processes.size
    for _ in range(_TRIES):
        strategy.processes.all_gather([0])  # all begin
        own = min(_seconds(multiply) for _ in range(_TIMES))
        seconds = strategy.processes.all_gather([int(1e9 * own)])[:, 0] / 1e9
        found = [float(least) for least in np.minimum(found, seconds)]
        if not list(slow_ranks(found, [""] * len(found))):
            break
    return found


def _sum_of(strategy: MultiProcessStrategy, size: int) -> Callable[[], None]:
    """Sums `size` bytes over the replicas."""
    vector = tf.zeros([size // 4])

    @tf.function(autograph=False)
    def first_of_sum() -> tf.Tensor:
        return strategy.run(lambda: exchange.all_reduce([tf.identity(vector)])[0][0])

    def run() -> None:
        for first in strategy.experimental_local_results(first_of_sum()):
            first.numpy()  # waits for it

    return run


def _shortest(processes: Processes, run: Callable[[], None]) -> float:
    """How long the slowest process takes, in the best of some tries after a first one."""
    found: list[float] = []
    first = _slowest(processes, _seconds(run))  # it is traced
    if first > _TOO_LONG:
        return first
    while len(found) < _TIMES and sum(found) < _ENOUGH_SECONDS:
        found.append(_slowest(processes, _seconds(run)))
    return min(found)


def _slowest(processes: Processes, seconds: float) -> float:
    return float(processes.all_gather([int(1e9 * seconds)]).max()) / 1e9


def _seconds(run: Callable[[], None]) -> float:
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def _ranks_at(facts: Sequence[Facts], place: str) -> int:
    return sum(fact.place == place for fact in facts)
