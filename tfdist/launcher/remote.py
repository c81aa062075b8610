"""What the launchers of other machines say about the job, as outcomes."""

from __future__ import annotations

from tfdist.launcher.outcome import Outcome
from tfdist.rendezvous.end import End
from tfdist.rendezvous.machine import Group


class Remote:
    """The other machines of a job.

    Args:
        group: the launchers.
    """

    def __init__(self, group: Group):
        self._group = group
        self._failed = False

    def fileno(self) -> int:
        """The descriptor; it can be read once another machine has failed."""
        return self._group.fileno()

    def failure(self) -> Outcome:
        """The outcome of the job after another machine has failed."""
        self._failed = True
        return self._outcome(self._group.failure())

    def concluded(self, own: Outcome) -> Outcome:
        """The outcome of the job on all machines; waits for the other machines.

        Args:
            own: the outcome on this machine.
        """
        by_others = self._failed or (own.rank is not None and own.rank.log.lost_a_peer)
        end = End(own.status, own.message, by_others, self._group.host)
        job = self._group.conclude(end)
        if not job.status or job == end:
            return own
        return self._outcome(job)

    def _outcome(self, end: End) -> Outcome:
        where = f"on {end.host}, " if end.host else ""
        return Outcome(end.status, f"{where}{end.message}; the ranks of all machines were ended")
