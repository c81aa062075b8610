"""Gradients that wait in the chief until they are enough for an update."""

from __future__ import annotations

from typing import NamedTuple

from tfdist.parameter_server.chief.updates import Updates
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.gradients import Gradients


class Accumulated(NamedTuple):
    """Gradients of some batches.

    Attributes:
        gradients: their sum.
        worker: the one that computed the last of them.
        version: of the oldest values that they were computed from.
        batches: of how many batches they are.
    """

    gradients: Gradients
    worker: int
    version: int
    batches: int


class Accumulation:
    """What the end of an epoch, or parts of global batches, leave of an update.

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
        """Of how many batches gradients are kept."""
        return self._kept.batches if self._kept else 0

    def accepts(self, version: int) -> bool:
        """Whether gradients are not dropped that were computed from the values of `version`."""
        return self._strategy.policies.accepts(self._strategy.version - version)

    def add(self, now: Accumulated, updates: Updates) -> Accumulated | None:
        """The gradients of an update; None if these are kept until there are more.

        Those of as many batches as an update has are an update by themselves, also while others are
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
