"""Whether enough ranks of an elastic job are left, and which lost ones are replaced."""

from __future__ import annotations

import time
from collections.abc import Callable

from tfdist.launcher.elastic_limits import ElasticLimits
from tfdist.launcher.group_rank import GroupRank, Roster
from tfdist.launcher.keeping import Keeping


class Headcount:
    """The number of ranks of an elastic job.

    Args:
        ranks: the ranks.
        limits: how the job may change.
        keeping: keeps the state before the job ends.

    Attributes:
        limits: as above.
        keeping: as above.
    """

    def __init__(self, ranks: Roster, limits: ElasticLimits, keeping: Keeping) -> None:
        self.limits = limits
        self.keeping = keeping
        self._shortage = ""
        self._ranks = ranks
        self._restarts = limits.restarts
        self._spares = limits.spares
        self._short_since: float | None = None

    @property
    def shortage(self) -> str:
        """Why the job has too few ranks to go on, and what can be done; "" if it has not."""
        if not self._shortage:
            return ""
        return f"{self._shortage}, so it was ended; {self.keeping.advice}"

    @property
    def room(self) -> float:
        """How many more ranks there may be."""
        return self.limits.most - len(self._ranks.left()) - len(self._ranks.new())

    def can_spare(self, rank: GroupRank) -> bool:
        """Whether the others would be enough without `rank`, or could wait or keep their state."""
        left = len(self._ranks.left())
        may_wait = self.limits.is_open or bool(self.keeping.folder) or self._restarts > 0
        return rank.is_new or left > self.limits.least or (left > 1 and may_wait)

    def suffices(self, lost: GroupRank, status: int) -> bool:
        """Whether the job can go on without a rank.

        Args:
            lost: the rank, which is gone or leaves.
            status: its exit status; negative for a signal.
        """
        left = len(self._ranks.staying())
        come = len(self._ranks.new()) + self._may_replace(lost, status)
        may_wait = self.limits.is_open or bool(self.keeping.folder)
        may_wait |= left + come >= self.limits.least
        return left >= self.limits.least or (left > 0 and may_wait)

    def replaces(self, lost: GroupRank, status: int) -> bool:
        """Whether a new rank is started in the place of a lost one; called once for each.

        Args:
            lost: the rank.
            status: its exit status; negative for a signal.
        """
        if not self._may_replace(lost, status) or not self._ranks.alive():
            return False
        self._restarts -= 1
        return True

    @property
    def lacks_spare(self) -> bool:
        """Whether fewer processes wait to be called than should."""
        return len(self._ranks.spares()) < min(self._spares, self._restarts)

    def lose_spare(self) -> None:
        """Called when a process has ended that waited to be called; the next would end too."""
        self._spares -= 1

    def _may_replace(self, lost: GroupRank, status: int) -> bool:
        kept = self._spares if lost.only_sums else 0  # processes that wait take ranks' places only
        return status < 0 and not lost.leaves and self._restarts > kept

    def note_loss(self, why: str, say: Callable[[str], None], *, waits: bool) -> None:
        """Called when a rank was lost.

        Args:
            why: how.
            say: tells the user something, in one line.
            waits: whether too few ranks wait for others.
        """
        left = len(self._ranks.staying())
        if left >= self.limits.least:
            return
        are = "rank is" if left == 1 else "ranks are"
        too_few = f"{why}; {left} {are} left, and the job needs {self.limits.least} (--min)"
        if not waits:
            self._shortage = too_few
        else:
            may_come = self.limits.is_open or self._ranks.new() or self._restarts > 0
            then = "waiting for new ones" if may_come else "keeping its state"
            say(f"{too_few}; {then}")

    def begin_to_wait(self) -> None:
        """Called when too few ranks wait before a step."""
        self._short_since = self._short_since or time.monotonic()

    def end_waiting(self) -> None:
        """Called when ranks form a group."""
        self._short_since = None
        self.keeping.begin_anew()

    def is_overdue(self, now: float) -> bool:
        """Whether too few ranks have waited for too long."""
        alive = self._ranks.alive()
        if not alive:
            return False
        may_come = self.limits.is_open or bool(self._ranks.new())
        patience = self.limits.patience if may_come else 0.0
        if self._short_since is None or now - self._short_since <= patience:
            return False
        if not self.keeping.is_done(now, alive[0]):
            return False
        few = f"fewer than {self.limits.least} ranks (--min) were"
        waited = f" there for {patience:g} s (--rejoin-timeout)" if may_come else " left"
        self._shortage = few + waited
        return True
