"""Parts of batches on a virtual clock, where the objects of a live chief choose who helps whom."""

from __future__ import annotations

import math

import numpy as np

from tfdist.parameter_server.data import durations
from tfdist.parameter_server.data.backups import Backups


class Clock:
    """What `durations` knows as `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class LiveParts:
    """As `Parts` with backups; there is nothing that it does not ask the live objects.

    Args:
        times: as for `Parts`.
        parts: into how many parts a batch is divided.
        exchange: as for `Parts`.
        monkeypatch: gives the live objects the clock.
    """

    def __init__(self, times: np.ndarray, parts: int, exchange: float, monkeypatch):
        self._times, self._parts, self._exchange = times, parts, exchange
        self._clock = Clock()
        monkeypatch.setattr(durations, "time", self._clock)
        self._backups = Backups()
        self._computing: dict[int, tuple[float, int, int]] = {}  # by worker: end, step, part
        self._asks = dict.fromkeys(range(times.shape[1]), math.inf)  # the longest idle one first
        self.in_vain = 0

    def run(self) -> list[float]:
        """The times at which the next step can begin."""
        self._backups.begin_run()
        ends = []
        for step in range(len(self._times)):
            self._step, self._used, self._given = step, set(), 0
            for worker in list(self._asks):
                self._take(worker)
            while len(self._used) < self._parts:
                self._next()
            begin = self._clock.now + self._exchange
            while self._computing and min(self._computing.values())[0] <= begin:
                self._next()
            self._clock.now = begin
            self._backups.begin_batch()
            ends.append(begin)
        return ends

    def _next(self) -> None:
        computed = min((end, worker) for worker, (end, *_) in self._computing.items())
        asking = min(self._asks, key=self._asks.__getitem__, default=None)
        if asking is not None and self._asks[asking] < computed[0]:
            self._clock.now = self._asks[asking]
            self._take(asking)
            return
        self._clock.now, worker = computed
        _, step, part = self._computing.pop(worker)
        self._backups.end(worker)
        if step == self._step and part not in self._used:
            self._used.add(part)
            others = [other for _, *other in self._computing.values()]
            self.in_vain += others.count([step, part])
        self._asks[worker] = math.inf
        if len(self._used) < self._parts:
            self._take(worker)

    def _take(self, worker: int) -> None:
        part, seconds = self._given, None
        if self._given < self._parts:
            self._given += 1
        else:
            open_parts = set(range(self._parts)) - self._used
            part, seconds = self._backups.choose(worker, open_parts)
        if part is None:
            self._asks[worker] = math.inf if seconds is None else self._clock.now + seconds
            return
        del self._asks[worker]
        self._backups.begin(worker, part)
        end = self._clock.now + self._times[self._step, worker]
        self._computing[worker] = end, self._step, part
