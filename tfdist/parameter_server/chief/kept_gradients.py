"""Gradients that wait in the chief until there are enough for an update."""

from __future__ import annotations

from typing import NamedTuple

from tfdist.parameter_server.chief.updates import Updates
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.gradients import Gradients


class Accumulated(NamedTuple):
    """Gradients of some batches.

    Attributes:
        gradients: their sum.
        worker: the worker that computed the last of the gradients.
        version: the version of the oldest values that a gradient was computed from.
        batches: the number of batches.
    """

    gradients: Gradients
    worker: int
    version: int
    batches: int


class Accumulation:
    """Keeps gradients of an update that the end of an epoch, or parts, have left incomplete.

    Args:
        strategy: the strategy.
        batches: the number of batches of an update.
    """

    def __init__(self, strategy: ChiefStrategy, batches: int):
        self._strategy = strategy
        self._wanted = batches
        self._kept: Accumulated | None = None

    @property
    def batches(self) -> int:
        """The number of batches whose gradients are kept."""
        return self._kept.batches if self._kept else 0

    def accepts(self, version: int) -> bool:
        """Whether gradients computed from the values of `version` are used, not dropped."""
        return self._strategy.policies.accepts(self._strategy.version - version)

    def add(self, now: Accumulated, updates: Updates) -> Accumulated | None:
        """The gradients of an update; None if `now` is kept until there are more.

        Gradients of all batches of an update make an update by themselves, even while others are
        kept.
        """
        if now.batches == self._wanted:
            return now
        if not updates.are_finite(now.gradients):
            updates.note_overflow()
            return None
        kept, self._kept = self._kept, None
        if kept is not None and not self.accepts(kept.version):
            staleness = self._strategy.version - kept.version
            self._strategy.report.add(kept.worker, staleness, None)
            kept = None
        if kept is not None:
            total, _ = updates.add([(kept.gradients, {}), (now.gradients, {})])
            oldest, batches = min(kept.version, now.version), kept.batches + now.batches
            now = Accumulated(total, now.worker, oldest, batches)
        if now.batches < self._wanted:
            updates.note_finite()
            self._kept = now
            return None
        mean = updates.scaled(now.gradients, self._wanted / now.batches)
        return now._replace(gradients=mean)
