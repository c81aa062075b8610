"""What the launchers of other machines say about the job, as outcomes."""

from __future__ import annotations

import math
import os
import select
import signal
import time

from tfdist.launcher.outcome import Outcome, ended_by
from tfdist.rendezvous.end import End
from tfdist.rendezvous.machine import Meeting

# After a failure, the ranks of other machines need their own grace period to end.
_PATIENCE = 30.0
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Remote:
    """The other machines of a job.

    Args:
        meeting: the launchers.
    """

    def __init__(self, meeting: Meeting):
        self._meeting = meeting
        self._told: Outcome | None = None

    def fileno(self) -> int:
        """The descriptor; it can be read once another machine has failed."""
        return self._meeting.fileno()

    def failure(self) -> Outcome:
        """The outcome of the job after another machine has failed."""
        end, _ = self._meeting.told()
        self._told = _outcome(end)
        return self._told

    def concluded(self, own: Outcome, signals: int, end: float, grace: float) -> Outcome:
        """The outcome of the job on all machines. Waits for the other machines.

        Args:
            own: the outcome on this machine, whose ranks have all ended.
            signals: the descriptor of `signals.received`.
            end: when the job ends because of its time limit, by `time.monotonic`; inf for never.
            grace: the seconds that ranks have which are told to end.
        """
        by_others = own is self._told or (own.rank is not None and own.rank.log.lost_a_peer)
        said = End(own.status, own.message, by_others, self._meeting.host)
        self._meeting.say(said)
        patience = time.monotonic() + grace + _PATIENCE if own.status else math.inf
        while True:
            now = time.monotonic()
            if now >= patience:  # a launcher is stopped, or its network is cut
                return own
            if now >= end and not own.status:
                return self._interrupted(
                    Outcome(124, "the job was ended (--timeout); ranks of other machines still ran")
                )
            wait = (patience if own.status else end) - now
            limit = wait if wait < math.inf else None
            readable, _, _ = select.select([signals, self.fileno()], [], [], limit)
            if signals in readable:
                for number in os.read(signals, 4096):
                    if number in _ENDS:
                        return self._interrupted(ended_by(signal.Signals(number)))
            if self.fileno() in readable:
                job, is_over = self._meeting.told()
                if not is_over:
                    own = self._told = _outcome(job) if not own.status else own
                    patience = now + grace + _PATIENCE
                elif job == said or (own.status and not job.host):
                    return own  # the cause is here, or nobody knows better
                else:
                    return _outcome(job) if job.status else own

    def _interrupted(self, outcome: Outcome) -> Outcome:
        self._meeting.say(End(outcome.status, outcome.message, host=self._meeting.host))
        return outcome


def _outcome(end: End) -> Outcome:
    where = f"on {end.host}, " if end.host else ""
    return Outcome(end.status, f"{where}{end.message}; the ranks of all machines were ended")
