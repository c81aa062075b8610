"""When an idle worker computes a part of a global batch that another worker has not finished."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Collection

# A worker that takes so many times as long as usual may be in trouble.
_LATE = 1.5
# A backup must be expected to end by so much earlier, as a part of the remaining time.
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


class Backups:
    """Knows how long the workers usually take, and so who will be late; called under one lock.

    Each part is computed by at most two workers at a time.
    """

    def __init__(self) -> None:
        self._usual: dict[int, float] = {}
        self._begun: dict[int, _Begun] = {}
        self._holders: dict[int, set[int]] = {}

    def begin_run(self) -> None:
        """Called when the workers begin anew."""
        self._begun.clear()
        self._holders.clear()

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

    def choose(self, worker: int, open_parts: Collection[int]) -> tuple[int | None, float | None]:
        """The part that `worker` should compute too, or in how many seconds to ask again.

        Args:
            worker: an idle worker.
            open_parts: the parts of the present global batch that were begun and not used yet.

        Returns:
            `(part, None)`, or `(None, seconds)`; `(None, None)` to wait until something changes.
        """
        now = time.monotonic()
        own = self._usual.get(worker)
        waits = []
        for part in sorted(open_parts):
            holders = self._holders.get(part, set())
            if own is None or len(holders) != 1:
                continue  # nothing is known, or two compute the part already
            (other,) = holders
            begun = self._begun.get(other)
            if begun is None:
                continue  # it has finished; its result is about to be used
            usual = self._usual.get(other, statistics.median(self._usual.values()))
            left = begun.at + usual - now
            late = begun.at + _LATE * usual - now
            if own < _MARGIN * left or late <= 0:
                return part, None
            waits.append(late)
        return None, min(waits, default=None)
