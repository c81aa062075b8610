"""Synchronous steps whose workers take one part after the other, and help others that are late.

What a live chief does is in `tfdist/parameter_server/data/`: `parts_source.py` hands out parts,
`durations.py` says who will be late, and `backups.py` chooses what an idle worker computes too. A
test compares the two. Where several idle workers could help in the same moment, chance decides
there; here the one does that has waited for longest.

Most workers finish the part that they began with the step and find nothing to help with. They all
begin at once, and `_finish_many` lets them finish in a loop of its own, which asks little.
"""

from __future__ import annotations

import array
import bisect
import collections
import math

import numpy as np

from tfdist.plan.simulation.compute_times import Times
from tfdist.plan.simulation.runs import Run

# As in `durations.py`.
LATE, MARGIN = 1.5, 0.8

_OF_THE_PAST = -1  # the part of a worker that computes one of an earlier step


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
        self._times = np.ascontiguousarray(times, np.float64)
        self._steps, self._workers = times.shape
        self._parts, self._backup, self._exchange = parts, backup, exchange
        self._clock = 0.0
        self._in_vain = 0
        # Those that wait; who waits for longest comes first.
        self._idle = collections.deque(range(self._workers))
        # Those that compute: the end and the worker, both negative, so that the next one is last.
        self._computing: list[tuple[float, int]] = []
        # By worker: when it has finished, and which part.
        self._end = array.array("d", [0.0] * self._workers)
        self._part = array.array("q", [0] * self._workers)
        # By worker: how long a part usually takes, NaN where nobody knows, and what that will be
        # when it has finished.
        self._usual = array.array("d", [math.nan] * self._workers)
        self._usual_then = self._usual[:]
        # By part of the present step: how many workers compute it, 0 when it has been computed. The
        # last one is for `_OF_THE_PAST`.
        self._holders = [0] * (parts + 1)
        # By part, while one worker computes it: when it usually ends, and from when on it is late.
        self._ends = array.array("d", [-math.inf] * parts)
        self._late = array.array("d", [math.inf] * parts)
        # The same memory, for all parts at once.
        self._all_ends, self._all_late = np.frombuffer(self._ends), np.frombuffer(self._late)
        self._latest = -math.inf  # nothing in `_ends` is greater
        self._soonest = math.inf  # nothing in `_late` is less
        # Whether nobody knows yet how long its worker takes, and the number of such parts. All of
        # them have begun at the start.
        self._is_unknown, self._unknown = np.zeros(parts, bool), 0

    def run(self) -> Run:
        """All steps. As many gradients are used in each as there are workers."""
        ends = []
        for step in range(self._steps):
            self._begin_step(step)
            while self._missing:
                if self._unknown:
                    self._look()
                elif self._given == self._parts:
                    self._finish_many()
                if self._missing:
                    self._next_event()
            self._clock += self._exchange
            ends.append(self._clock)
        times = np.repeat(ends, self._workers)
        return Run(times, np.zeros(len(times), np.int64), self._in_vain)

    def _begin_step(self, step: int) -> None:
        while self._computing and -self._computing[-1][0] <= self._clock:
            self._finish()  # in vain, as the step before has all parts
        given = len(self._idle)
        workers = np.fromiter(self._idle, np.int64, given)
        self._idle.clear()
        self._seconds = self._times[step].data
        self._given, self._missing = given, self._parts
        self._holders[:] = [1] * given + [0] * (self._parts + 1 - given)
        part, end = np.frombuffer(self._part, np.int64), np.frombuffer(self._end)
        part[:], part[workers] = _OF_THE_PAST, np.arange(given)
        end[workers] = self._clock + self._times[step, workers]
        usual, seconds = np.frombuffer(self._usual)[workers], end[workers] - self._clock
        known = np.where(np.isnan(usual), seconds, usual)
        np.frombuffer(self._usual_then)[workers] = (seconds + known) / 2
        # Nobody is idle now.
        order = np.argsort(end, kind="stable")[::-1]
        self._computing = list(zip((-end[order]).tolist(), (-order).tolist()))
        if self._backup:
            self._expect(usual)

    def _expect(self, usual: Times) -> None:
        """Notes when the first parts of a step will end.

        Args:
            usual: how long each of their workers usually takes, NaN where nobody knows.
        """
        given = len(usual)
        self._all_ends.fill(-math.inf)
        self._all_late.fill(math.inf)
        self._all_ends[:given] = self._clock + usual
        self._all_late[:given] = self._clock + LATE * usual
        self._is_unknown[:given] = np.isnan(usual)
        self._unknown = int(self._is_unknown.sum())
        self._all_ends[self._is_unknown], self._all_late[self._is_unknown] = -math.inf, math.inf
        self._look()

    def _finish_many(self) -> None:
        """Lets workers finish while none of them is to begin anything after that.

        All parts have been given, and it is known how long each worker usually takes. After this,
        `_soonest` is right if it comes before the next worker finishes.
        """
        computing, idle, holders = self._computing, self._idle, self._holders
        part_of, usual, usual_then = self._part, self._usual, self._usual_then
        ends, late, latest, soonest = self._ends, self._late, self._latest, self._soonest
        missing, clock, in_vain = self._missing, self._clock, self._in_vain
        while missing:
            end, worker = computing[-1]
            end, worker = -end, -worker
            if end >= soonest:
                soonest = self._look_for_soonest()
                if end >= soonest:
                    break
            own = usual_then[worker]
            if own < MARGIN * (latest - end):
                latest = self._look_for_latest()
                if own < MARGIN * (latest - end):
                    break
            computing.pop()
            idle.append(worker)
            usual[worker], clock = own, end
            part = part_of[worker]
            held = holders[part]
            if held:
                holders[part] = 0
                in_vain += held - 1
                missing -= 1
                ends[part], late[part] = -math.inf, math.inf
        self._missing, self._clock, self._in_vain = missing, clock, in_vain

    def _next_event(self) -> None:
        end = -self._computing[-1][0]
        if self._idle and self._soonest < end:
            self._clock = max(self._clock, self._soonest)
            self._give(self._idle.popleft())
        else:
            self._clock = end
            self._finish()

    def _finish(self) -> None:
        """The next worker has computed its part, which is used if it is the first one with it."""
        worker = -self._computing.pop()[1]
        part = self._part[worker]
        self._usual[worker] = self._usual_then[worker]
        if self._holders[part]:
            self._in_vain += self._holders[part] - 1
            self._holders[part] = 0
            self._missing -= 1
            self._let_alone(part)
        if self._missing:
            self._give(worker)
        else:
            self._idle.append(worker)

    def _give(self, worker: int) -> None:
        """Gives an idle worker a part, if there is one for it."""
        if self._given < self._parts:
            self._begin(worker, self._given)
            self._given += 1
        elif self._backup and (part := self._choose(worker)) is not None:
            self._begin(worker, part)
        else:
            self._idle.append(worker)

    def _begin(self, worker: int, part: int) -> None:
        now, usual = self._clock, self._usual[worker]
        end = now + self._seconds[worker]
        self._end[worker], self._part[worker] = end, part
        self._usual_then[worker] = (end - now + usual) / 2
        bisect.insort(self._computing, (-end, -worker))
        self._holders[part] += 1
        if self._holders[part] > 1:
            self._let_alone(part)
        elif self._backup:
            ends, late = now + usual, now + LATE * usual
            self._ends[part], self._late[part] = ends, late
            self._latest, self._soonest = max(self._latest, ends), min(self._soonest, late)

    def _let_alone(self, part: int) -> None:
        """Notes that nobody else is to compute a part."""
        self._ends[part], self._late[part] = -math.inf, math.inf
        if self._unknown and self._is_unknown[part]:
            self._is_unknown[part] = False
            self._unknown -= 1

    def _choose(self, worker: int) -> int | None:
        """The first part that somebody else computes and the worker should compute, too."""
        if self._unknown:
            self._estimate()
        now, usual = self._clock, self._usual[worker]
        has_slow = usual < MARGIN * (self._latest - now)
        if not has_slow and self._soonest > now:
            return None
        is_for = self._all_late <= now
        if has_slow:
            is_for |= usual < MARGIN * (self._all_ends - now)
        part = int(is_for.argmax())
        if is_for[part]:
            return part
        self._look()
        return None

    def _estimate(self) -> None:
        """Lets workers that nobody knows take as long as usual workers."""
        known = np.frombuffer(self._usual)
        usual = float(np.median(known[~np.isnan(known)]))
        self._all_ends[self._is_unknown], self._all_late[self._is_unknown] = usual, LATE * usual
        self._look()

    def _look(self) -> None:
        """Looks which part ends last, and which one is late first."""
        self._look_for_latest()
        self._look_for_soonest()

    def _look_for_latest(self) -> float:
        self._latest = latest = float(np.maximum.reduce(self._all_ends))
        return latest

    def _look_for_soonest(self) -> float:
        self._soonest = soonest = float(np.minimum.reduce(self._all_late))
        return soonest
