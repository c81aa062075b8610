"""How long workers take for parts of a global batch, and so who will be late."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time

# A worker that takes so many times as long as usual may be in trouble.
_LATE = 1.5
# Help must be expected to end by so much earlier, as a part of the remaining time.
_MARGIN = 0.8


@dataclasses.dataclass(frozen=True)
class _Begun:
    """What a worker is doing.

    Attributes:
        part: the number of the part.
        at: when it has begun, in seconds.
    """

    part: int
    at: float


class Durations:
    """Measures the parts of all workers; called under one lock."""

    def __init__(self) -> None:
        self._usual: dict[int, float] = {}
        self._begun: dict[int, _Begun] = {}
        self._holders: dict[int, set[int]] = {}

    def begin_run(self) -> None:
        """Called when the workers begin anew."""
        self._begun.clear()
        self.begin_batch()

    def begin_batch(self) -> None:
        """Called when the parts of another global batch are handed out."""
        self._holders.clear()

    def begin(self, worker: int, part: int) -> None:
        """Called when a worker begins with a part."""
        self._begun[worker] = _Begun(part, time.monotonic())
        self._holders.setdefault(part, set()).add(worker)

    def end(self, worker: int) -> None:
        """Called when a worker has finished what it began last."""
        begun = self._begun.pop(worker, None)
        if begun is not None:
            seconds = time.monotonic() - begun.at
            self._usual[worker] = (seconds + self._usual.get(worker, seconds)) / 2

    def leave(self, worker: int) -> None:
        """Called when a worker is lost."""
        self._begun.pop(worker, None)
        self._usual.pop(worker, None)
        for holders in self._holders.values():
            holders.discard(worker)

    def patience(self, worker: int, part: int) -> float:
        """For how many seconds an idle `worker` should rely on who has begun a part.

        Returns:
            0 if it would be faster itself, or if the other one is late; infinity if nothing is
            known, if the part was computed already, or if two workers compute it.
        """
        own, holders = self._usual.get(worker), self._holders.get(part, set())
        if own is None or len(holders) != 1:
            return math.inf
        (other,) = holders
        begun = self._begun.get(other)
        if begun is None:
            return math.inf  # it has finished; its result is about to be used
        now = time.monotonic()
        usual = self._usual.get(other, statistics.median(self._usual.values()))
        if own < _MARGIN * (begun.at + usual - now):
            return 0.0
        return max(0.0, begun.at + _LATE * usual - now)
