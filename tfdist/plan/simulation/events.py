"""Asynchronous training, one event after the other: for every policy, and a chief that takes time.

What a live chief does is in `tfdist/parameter_server/chief/`: `turns.py` counts how far workers
are, `scheduler.py` holds updates back, `training.py` counts staleness. Between two updates the
chief goes back to Keras, and the worker whose gradient was used reads the weights. So here, too, it
begins before the next gradient is used.

The policy is asked the same question only once: its answer depends on nothing else. The time of an
event grows with the number of gradients under way if the policy looks at them, as
`Bounded(n, "wait")` does, which allows n + 1 of them. It does not grow with the number of workers.
Where such a policy has more than n workers, `in_turn.py` finds the same sooner.
"""

from __future__ import annotations

import array
import collections
import functools
import heapq
import itertools

import numpy as np

from tfdist.plan.simulation.compute_times import Times
from tfdist.plan.simulation.runs import Policy, Run

# So many answers are kept of each kind, and none about more gradients under way than that.
_MOST_ANSWERS, _MOST_UNDER_WAY = 1 << 16, 32

_kept = functools.lru_cache(_MOST_ANSWERS)


class Events:
    """Simulates workers and a chief.

    Args:
        times: seconds of the steps of each worker, of shape `[steps, workers]`.
        policy: of the chief.
        update: seconds of the chief for each gradient. It uses one after the other.
    """

    def __init__(self, times: Times, policy: Policy, update: float = 0.0):
        # Faster than the array itself for single elements.
        self._times = np.ascontiguousarray(times, np.float64).data
        self._policy = policy
        self._may_start, self._accepts = _kept(policy.may_start), _kept(policy.accepts)
        self._known_may_use = _kept(self._may_use)
        self._update = update
        self._steps, self._workers = times.shape
        # Whether updates may have to wait, if all others are as stale as can be.
        self._holds_back = not policy.may_update([times.size] * (self._workers - 1))
        self._finished = [0] * self._workers
        # By the number of steps: how many workers have finished so many, for the slowest one.
        self._levels = [self._workers, *[0] * self._steps]
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
        self._used, self._staleness = array.array("d"), array.array("q")
        self._dropped = 0

    def run(self) -> Run:
        """Until the first worker has no more steps."""
        for worker in range(self._workers):
            self._line_up(worker)
        self._start_all()
        while self._computing and self._fastest < self._steps:
            end, worker = heapq.heappop(self._computing)
            if end > self._clock:  # else the chief has been busy until later
                self._clock = end
            self._arrived.append(worker)
            while self._use_next() and self._fastest < self._steps:
                self._start_all()
        return Run(np.array(self._used), np.array(self._staleness, np.int64), self._dropped)

    def _line_up(self, worker: int) -> None:
        finished = self._finished[worker]
        queue = self._waiting.get(finished)
        if queue is None:
            queue = self._waiting[finished] = collections.deque()
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
        may_start, slowest, under_way = self._may_start, self._slowest, len(self._read)
        first = found = None
        for finished, queue in self._waiting.items():
            is_first = first is None or queue[0] < first
            if is_first and may_start(finished - slowest, under_way):
                first, found = queue[0], finished
        return found

    def _use_next(self) -> bool:
        """Uses the first gradient that has arrived and may be used; False if there is none."""
        place = self._first_to_use() if self._denied < len(self._arrived) else None
        if place is None:
            self._denied = len(self._arrived)
            return False
        self._denied = 0
        self._use(self._arrived.pop(place))
        return True

    def _first_to_use(self) -> int | None:
        """The place in `_arrived` of the first one that may be used; None if there is none."""
        if not self._holds_back:
            return 0
        arrived, read, version = self._arrived, self._read, self._version
        ages = tuple([version - then for then in read.values()])
        may_use = self._known_may_use if len(ages) <= _MOST_UNDER_WAY else self._may_use
        for place in range(self._denied, len(arrived)):
            if may_use(ages, version - read[arrived[place]]):
                return place
        return None

    def _may_use(self, ages: tuple[int, ...], own: int) -> bool:
        """Whether a gradient may be used before all others under way.

        Args:
            ages: how many updates there have been since the weights were read for each gradient
                under way, the oldest first.
            own: that of the gradient. Those of the same age are alike.
        """
        others = list(ages)
        others.remove(own)
        return self._policy.may_update([age + later for later, age in enumerate(others, 1)])

    def _use(self, worker: int) -> None:
        self._clock += self._update
        staleness = self._version - self._read.pop(worker)
        if self._accepts(staleness):
            self._version += 1
            self._used.append(self._clock)
            self._staleness.append(staleness)
        else:
            self._dropped += 1
        self._level(worker)
        self._line_up(worker)

    def _level(self, worker: int) -> None:
        """Notes that the worker has finished a step."""
        levels, finished = self._levels, self._finished[worker] + 1
        levels[finished - 1] -= 1
        levels[finished] += 1
        self._finished[worker] = finished
        self._fastest = max(self._fastest, finished)
        while not levels[self._slowest]:
            self._slowest += 1
