"""Synchronous steps whose workers take one part after the other, and help others that are late.

What a live chief does is in `tfdist/parameter_server/data/`: `parts_source.py` hands out parts,
`durations.py` says who will be late, and `backups.py` chooses what an idle worker computes too. A
test compares the two. Where several idle workers could help in the same moment, chance decides
there; here the one does that has waited for longest.
"""

from __future__ import annotations

import array
import collections
import heapq
import math
from typing import NamedTuple

import numpy as np

from tfdist.plan.simulation.compute_times import Times
from tfdist.plan.simulation.runs import Run

# As in `durations.py`.
LATE, MARGIN = 1.5, 0.8


class _Begun(NamedTuple):
    """What a worker computes.

    Attributes:
        part: the number of the part.
        step: of which step.
        at: when the worker has begun.
    """

    part: int
    step: int
    at: float


class Parts:
    """Simulates workers that divide each global batch into parts.

    Args:
        times: seconds in which each worker computes a part that it begins in a step, of shape
            `[steps, workers]`.
        parts: into how many parts a batch is divided; as many as workers at least.
        backup: whether idle workers compute parts that others have begun.
        exchange: seconds from the last part of a step to the first ones of the next step.
    """

    def __init__(self, times: Times, parts: int, backup: bool, exchange: float = 0.0):
        # Faster than the array itself for single elements.
        self._times = np.ascontiguousarray(times, np.float64).data
        self._steps, self._workers = times.shape
        self._parts, self._backup, self._exchange = parts, backup, exchange
        self._clock = 0.0
        self._in_vain = 0
        # Those that wait; who waits for longest comes first.
        self._idle = collections.deque(range(self._workers))
        self._computing: list[tuple[float, int]] = []
        # By worker: what it computes, and how long a part usually takes, NaN where nobody knows.
        self._begun = [_Begun(0, -1, 0.0)] * self._workers
        self._usual = array.array("d", [math.nan] * self._workers)
        # By part of the present step, while one worker computes it: when it usually ends, and from
        # when on it is late. The heap has the latter in order, with parts for which it has passed.
        self._ends, self._late = np.empty(parts), np.empty(parts)
        self._in_order: list[tuple[float, int]] = []
        self._latest = -math.inf  # nothing in `_ends` is greater
        # Whether nobody knows yet how long its worker takes, and the number of such parts. All of
        # them have begun at the start.
        self._is_unknown, self._unknown = np.zeros(parts, bool), 0

    def run(self) -> Run:
        """All steps. As many gradients are used in each as there are workers."""
        ends = []
        for step in range(self._steps):
            self._begin_step(step)
            while self._missing:
                self._next_event()
            self._clock += self._exchange
            ends.append(self._clock)
        times = np.repeat(ends, self._workers)
        return Run(times, np.zeros(len(times), np.int64), self._in_vain)

    def _begin_step(self, step: int) -> None:
        while self._computing and self._computing[0][0] <= self._clock:
            self._finish()  # in vain, as the step before has all parts
        self._step, self._given, self._missing = step, 0, self._parts
        self._holders = [0] * self._parts
        self._ends.fill(-math.inf)
        self._late.fill(math.inf)
        self._in_order.clear()
        self._is_unknown.fill(False)
        self._unknown = 0
        self._latest = -math.inf
        for _ in range(len(self._idle)):
            self._give(self._idle.popleft(), self._clock)

    def _next_event(self) -> None:
        late = self._next_late() if self._backup and self._idle else math.inf
        if late < self._computing[0][0]:
            self._clock = max(self._clock, late)
            self._give(self._idle.popleft(), self._clock)
        else:
            self._clock = self._computing[0][0]
            self._finish()

    def _finish(self) -> None:
        """The next worker has computed its part, which is used if it is the first one with it."""
        now, worker = heapq.heappop(self._computing)
        part, step, begun = self._begun[worker]
        seconds, usual = now - begun, self._usual[worker]
        self._usual[worker] = (seconds + (seconds if math.isnan(usual) else usual)) / 2
        if step == self._step and self._holders[part]:
            self._in_vain += self._holders[part] - 1
            self._holders[part] = 0
            self._missing -= 1
            self._let_alone(part)
        if self._missing:
            self._give(worker, now)
        else:
            self._idle.append(worker)

    def _give(self, worker: int, now: float) -> None:
        """Gives an idle worker a part, if there is one for it."""
        if self._given < self._parts:
            self._begin(worker, self._given, now)
            self._given += 1
        elif self._backup and (part := self._choose(worker, now)) is not None:
            self._begin(worker, part, now)
        else:
            self._idle.append(worker)

    def _begin(self, worker: int, part: int, now: float) -> None:
        self._begun[worker] = _Begun(part, self._step, now)
        heapq.heappush(self._computing, (now + self._times[self._step, worker], worker))
        self._holders[part] += 1
        usual = self._usual[worker]
        if self._holders[part] > 1:
            self._let_alone(part)
        elif not self._backup:
            return
        elif math.isnan(usual):
            self._is_unknown[part] = True
            self._unknown += 1
        else:
            ends, late = now + usual, now + LATE * usual
            self._ends[part], self._late[part] = ends, late
            self._latest = max(self._latest, ends)
            heapq.heappush(self._in_order, (late, part))

    def _let_alone(self, part: int) -> None:
        """Notes that nobody else is to compute a part."""
        self._ends[part], self._late[part] = -math.inf, math.inf
        if self._unknown and self._is_unknown[part]:
            self._is_unknown[part] = False
            self._unknown -= 1

    def _choose(self, worker: int, now: float) -> int | None:
        """The first part that somebody else computes and the worker should compute, too."""
        usual, late = self._usual[worker], self._next_late()
        if not self._unknown and late > now and usual >= MARGIN * (self._latest - now):
            return None
        is_for = (usual < MARGIN * (self._ends - now)) | (self._late <= now)
        part = int(is_for.argmax())
        if is_for[part]:
            return part
        self._latest = float(self._ends.max())
        return None

    def _next_late(self) -> float:
        """From when on a part is late; infinity if none will be."""
        if self._unknown:
            self._estimate()
            return float(self._late.min())
        while self._in_order and self._late[self._in_order[0][1]] != self._in_order[0][0]:
            heapq.heappop(self._in_order)
        return self._in_order[0][0] if self._in_order else math.inf

    def _estimate(self) -> None:
        """Lets workers that nobody knows take as long as usual workers."""
        known = np.frombuffer(self._usual)
        usual = float(np.median(known[~np.isnan(known)]))
        self._ends[self._is_unknown], self._late[self._is_unknown] = usual, LATE * usual
