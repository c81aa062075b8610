"""Measures latency and bandwidth between each pair of ranks, and their clocks."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdist.checkup.judging import slow_of
from tfdist.checkup.report import Link
from tfdist.engines.clocks import Clock, clock_of
from tfdist.engines.contract import Engine

_Pair = tuple[int, int]

_TINY = 2  # elements of float32
_TIMES = 20
# Elements of float32: up to 4 MiB, the largest bucket. Later ones are not longer, but repeated.
_LENGTHS = (2**14, 2**16, 2**18, 2**20, 2**20, 2**20)
# Of one pair, or of pairs at the same time. A slow link is measured by fewer and shorter messages.
_ENOUGH_SECONDS = 0.5
_MOST_SECONDS = 20.0
# Up to so many ranks, pairs are measured one after the other: undisturbed, but it takes longer.
_FEW = 8
# What else runs may disturb a measurement: links that look slow are measured again, so often.
_AGAIN = 2
_MOST_SUSPECTS = 8


class LinkTest:
    """The links of a job. All processes make it, and call its methods in the same order.

    Args:
        engine: carries tensors between pairs.
        hosts: of each rank, the number of its host.
    """

    def __init__(self, engine: Engine, hosts: Sequence[int]):
        assert engine.pairs is not None
        self._pairs = engine.pairs
        self._processes = engine.processes
        self._hosts = hosts
        self._clocks: list[Clock | None] = [Clock(0.0, 0.0), *[None] * (engine.processes.size - 1)]

    def measure(self) -> tuple[list[Link], list[Clock | None]]:
        """The links, and the clock of each rank; the same in all processes.

        If there are so many ranks that it would take long, only some of the links. The clock of a
        rank that was not measured with rank 0 is None.
        """
        links: dict[_Pair, Link] = {}
        seconds = 0.0
        list(self._measured([(0, 1)]))  # the engine gets ready
        for pairs in rounds(self._processes.size):
            begun = time.monotonic()
            links |= {link.ranks: link for link in self._measured(pairs)}
            seconds += float(self._gathered(time.monotonic() - begun).max())
            if seconds > _MOST_SECONDS:
                break
        for _ in range(_AGAIN):
            for suspect in slow_of(list(links.values()))[:_MOST_SUSPECTS]:
                again = next(self._measured([suspect.ranks]))
                links[suspect.ranks] = _better(suspect, again)
        return [links[pair] for pair in sorted(links)], self._clocks

    def _measured(self, pairs: Sequence[_Pair]) -> Iterator[Link]:
        """The links of pairs that exchange at the same time."""
        own = next((pair for pair in pairs if self._processes.rank in pair), None)
        latencies, usual = self._latencies(own, pairs)
        bandwidths = [0.0] * len(pairs)
        total, longest = 0.0, 0
        for length in _LENGTHS:
            seconds = self._gathered(self._timed(length, own))
            for place, pair in enumerate(pairs):
                carrying = max(max(seconds[rank] for rank in pair) - latencies[place], 1e-9)
                best = bandwidths[place] if length == longest else 0.0
                bandwidths[place] = max(best, 4 * length / carrying)
            longest, total = length, total + float(seconds.max())
            if total > _ENOUGH_SECONDS:
                break
        for place, (first, second) in enumerate(pairs):
            between = self._hosts[first] != self._hosts[second]
            measured = map(float, (latencies[place], usual[place], bandwidths[place]))
            yield Link((first, second), between, *measured)

    def _latencies(self, own: _Pair | None, pairs: Sequence[_Pair]) -> np.ndarray:
        """Of each pair the shortest and the median exchange; notes clocks on the way."""
        tiny, times = tf.zeros([_TINY]), []
        for _ in range(1 + _TIMES):
            times.append(time.time_ns())
            begun = time.perf_counter_ns()
            self._pairs.swap(tiny, own).numpy()
            times += [times[-1] + time.perf_counter_ns() - begun]
        rows = self._processes.all_gather(times)[:, 2:].reshape([self._processes.size, _TIMES, 2])
        seconds = (rows[:, :, 1] - rows[:, :, 0]) / 1e9
        of_ranks = np.stack([seconds.min(axis=1), np.median(seconds, axis=1)])
        for first, second in pairs:
            if first == 0:
                self._clocks[second] = clock_of(rows[0].tolist(), rows[second].tolist())
        return np.stack([of_ranks[:, pair].max(axis=1) for pair in pairs], axis=1)

    def _timed(self, length: int, own: _Pair | None) -> float:
        """How long this process takes to exchange so many elements."""
        vector = tf.zeros([length])
        self._pairs.swap(tf.zeros([_TINY]), own).numpy()  # so both begin at the same time
        begun = time.perf_counter()
        self._pairs.swap(vector, own).numpy()
        return time.perf_counter() - begun

    def _gathered(self, seconds: float) -> np.ndarray:
        """What each rank has measured, in seconds."""
        return self._processes.all_gather([int(1e9 * seconds)])[:, 0] / 1e9


def _better(first: Link, second: Link) -> Link:
    """The best of two measurements of one link."""
    return dataclasses.replace(
        first,
        latency_seconds=min(first.latency_seconds, second.latency_seconds),
        usual_latency_seconds=min(first.usual_latency_seconds, second.usual_latency_seconds),
        bandwidth_bytes_per_second=max(
            first.bandwidth_bytes_per_second, second.bandwidth_bytes_per_second
        ),
    )


def rounds(size: int) -> list[list[_Pair]]:
    """Each pair of `size` ranks once: one after the other for few ranks, else several at a time.

    Example:

    >>> from tfdist.checkup.links import rounds
    >>> rounds(3)
    [[(0, 1)], [(0, 2)], [(1, 2)]]
    """
    if size <= _FEW:
        return [[pair] for pair in itertools.combinations(range(size), 2)]
    # One rank stays in its place while the others move in a circle around it.
    places: list[int | None] = [*range(size), *([None] if size % 2 else [])]
    found = []
    for _ in range(len(places) - 1):
        half = len(places) // 2
        meeting = zip(places[:half], reversed(places[half:]))
        pairs = [(a, b) for a, b in meeting if a is not None and b is not None]
        found.append([(min(pair), max(pair)) for pair in pairs])
        places = [places[0], places[-1], *places[1:-1]]
    return found
