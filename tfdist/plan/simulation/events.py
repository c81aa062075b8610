"""Asynchronous training, one event after the other: for every policy, and a chief that takes time.

What a live chief does is in `tfdist/parameter_server/chief/`: `turns.py` counts how far workers
are, `scheduler.py` holds updates back, `training.py` counts staleness.
"""

from __future__ import annotations

import collections
import heapq

import numpy as np

from tfdist.plan.simulation.compute_times import Times
from tfdist.plan.simulation.runs import Policy, Run


class Events:
    """Simulates workers and a chief.

    Args:
        times: seconds of the steps of each worker, of shape `[steps, workers]`.
        policy: of the chief.
        update: seconds of the chief for each gradient. It uses one after the other.
    """

    def __init__(self, times: Times, policy: Policy, update: float = 0.0):
        self._times = times
        self._policy = policy
        self._update = update
        self._steps, self._workers = times.shape
        self._begun = [0] * self._workers
        self._finished = [0] * self._workers
        # How many workers have finished how many steps, for the slowest one.
        self._levels = collections.Counter({0: self._workers})
        self._slowest = 0
        self._read: dict[int, int] = {}
        self._computing: list[tuple[float, int]] = []
        self._arrived: list[int] = []
        self._waiting = list(range(self._workers))
        self._version = 0
        self._clock = 0.0
        self._used: list[float] = []
        self._staleness: list[int] = []
        self._dropped = 0

    def run(self) -> Run:
        """Until the first worker has no more steps."""
        self._start_all()
        while self._computing:
            end, worker = heapq.heappop(self._computing)
            self._clock = max(self._clock, end)  # the chief may have been busy until later
            self._arrived.append(worker)
            self._use_what_may_be_used()
            if max(self._finished) >= self._steps:
                break
            self._start_all()
        return Run(np.array(self._used), np.array(self._staleness, np.int64), self._dropped)

    def _start_all(self) -> None:
        left = []
        for worker in self._waiting:
            ahead = self._finished[worker] - self._slowest
            is_left = self._begun[worker] < self._steps
            if is_left and self._policy.may_start(ahead, len(self._read)):
                end = self._clock + self._times[self._begun[worker], worker]
                heapq.heappush(self._computing, (end, worker))
                self._begun[worker] += 1
                self._read[worker] = self._version
            else:
                left.append(worker)
        self._waiting = left

    def _use_what_may_be_used(self) -> None:
        """Uses gradients that have arrived, the first one that may be used first."""
        while True:
            worker = next((w for w in self._arrived if self._may_use(w)), None)
            if worker is None:
                return
            self._arrived.remove(worker)
            self._use(worker)

    def _may_use(self, worker: int) -> bool:
        if not self._policy.waits:
            return True
        versions = sorted(version for other, version in self._read.items() if other != worker)
        following = enumerate(versions, self._version + 1)
        return self._policy.may_update([later - version for later, version in following])

    def _use(self, worker: int) -> None:
        self._clock += self._update
        staleness = self._version - self._read.pop(worker)
        if self._policy.accepts(staleness):
            self._version += 1
            self._used.append(self._clock)
            self._staleness.append(staleness)
        else:
            self._dropped += 1
        self._level(worker)
        self._waiting.append(worker)

    def _level(self, worker: int) -> None:
        """Notes that the worker has finished a step."""
        self._levels[self._finished[worker]] -= 1
        self._finished[worker] += 1
        self._levels[self._finished[worker]] += 1
        while not self._levels[self._slowest]:
            self._slowest += 1
