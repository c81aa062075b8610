"""Asynchronous training, one event after the other: for every policy, and a chief that takes time.

What a live chief does is in `tfdist/parameter_server/chief/`: `turns.py` counts how far workers
are, `scheduler.py` holds updates back, `training.py` counts staleness.

The time of an event grows with the number of gradients under way if the policy looks at them, as
`Bounded(n, "wait")` does, which allows n + 1 of them. It does not grow with the number of workers.
"""

from __future__ import annotations

import collections
import heapq
import itertools

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
        # Whether updates may have to wait, if all others are as stale as can be.
        self._holds_back = not policy.may_update([times.size] * (self._workers - 1))
        self._finished = [0] * self._workers
        # How many workers have finished how many steps, for the slowest one.
        self._levels = collections.Counter({0: self._workers})
        self._slowest = self._fastest = 0
        # The version that each worker has read whose gradient is not used yet, the oldest first.
        self._read: dict[int, int] = {}
        self._computing: list[tuple[float, int]] = []
        self._arrived: list[int] = []
        # How many of these may not be used until something else is used, or another worker starts.
        self._denied = 0
        # By the number of finished steps: those that wait for their turn, each with a number.
        self._waiting: dict[int, collections.deque[tuple[int, int]]] = {}
        self._numbers = itertools.count()
        self._version = 0
        self._clock = 0.0
        self._used: list[float] = []
        self._staleness: list[int] = []
        self._dropped = 0

    def run(self) -> Run:
        """Until the first worker has no more steps."""
        for worker in range(self._workers):
            self._line_up(worker)
        self._start_all()
        while self._computing:
            end, worker = heapq.heappop(self._computing)
            self._clock = max(self._clock, end)  # the chief may have been busy until later
            self._arrived.append(worker)
            self._use_what_may_be_used()
            if self._fastest >= self._steps:
                break
            self._start_all()
        return Run(np.array(self._used), np.array(self._staleness, np.int64), self._dropped)

    def _line_up(self, worker: int) -> None:
        queue = self._waiting.setdefault(self._finished[worker], collections.deque())
        queue.append((next(self._numbers), worker))

    def _start_all(self) -> None:
        while (finished := self._who_may_start()) is not None:
            queue = self._waiting[finished]
            _, worker = queue.popleft()
            if not queue:
                del self._waiting[finished]
            end = self._clock + self._times[finished, worker]
            heapq.heappush(self._computing, (end, worker))
            self._read[worker] = self._version
            self._denied = 0

    def _who_may_start(self) -> int | None:
        """How many steps the one has finished that waits for longest and may start; None if none.

        All that have finished as many steps get the same answer, so only one of them asks.
        """
        allowed = [
            (queue[0], finished)
            for finished, queue in self._waiting.items()
            if self._policy.may_start(finished - self._slowest, len(self._read))
        ]
        return min(allowed)[1] if allowed else None

    def _use_what_may_be_used(self) -> None:
        """Uses gradients that have arrived, the first one that may be used first."""
        while True:
            left = self._arrived[self._denied :]
            worker = next((w for w in left if self._may_use(w)), None)
            if worker is None:
                self._denied = len(self._arrived)
                return
            self._denied = 0
            self._arrived.remove(worker)
            self._use(worker)

    def _may_use(self, worker: int) -> bool:
        if not self._holds_back:
            return True
        versions = [version for other, version in self._read.items() if other != worker]
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
        self._line_up(worker)

    def _level(self, worker: int) -> None:
        """Notes that the worker has finished a step."""
        self._levels[self._finished[worker]] -= 1
        self._finished[worker] += 1
        self._levels[self._finished[worker]] += 1
        self._fastest = max(self._fastest, self._finished[worker])
        while not self._levels[self._slowest]:
            self._slowest += 1
