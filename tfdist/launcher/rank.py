"""One rank: whether it runs, when it failed, and how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess

from tfdist.launcher import guardian, output
from tfdist.launcher.members import Member

# A traceback tells when a rank failed, if the rank ended within so many seconds after it.
_TEARDOWN = 10.0


@dataclasses.dataclass
class Rank:
    """A process, its output, and how it ended.

    Attributes:
        member: the rank's place in the job.
        process: the process.
        log: what the rank prints.
        code: its exit status, negative for a signal; None while it runs.
        ended: when it ended.
        spared: whether it failed, but the job went on without it.
        restarts: how often it was started again.
        stopped_since: when it was first seen stopped; None while it is not stopped.
    """

    member: Member
    process: subprocess.Popen[bytes]
    log: output.Log
    code: int | None = None
    ended: float = 0.0
    spared: bool = False
    restarts: int = 0
    stopped_since: float | None = None

    @property
    def name(self) -> str:
        """The name of the rank in messages."""
        return self.member.name

    @property
    def is_stopped(self) -> bool:
        """Whether the rank has not ended but is stopped, for example by SIGSTOP."""
        return self.code is None and guardian.state(self.process.pid) == "T"

    def stopped_for(self, now: float) -> float:
        """How many seconds ago the rank was first seen stopped; 0 while it is not stopped."""
        if not self.is_stopped:
            self.stopped_since = None
            return 0.0
        self.stopped_since = self.stopped_since or now
        return now - self.stopped_since

    @property
    def failed_at(self) -> tuple[bool, float, int]:
        """Sort key: the root cause sorts before the failures that it triggered.

        The time of its end is not enough: a rank with an uncaught exception, and a killed rank too,
        closes its connections before it has ended. Another rank may fail because of that, say so,
        and end first. A chief fails when it loses a server; no server fails when it loses its
        chief.
        """
        traceback = self.log.traceback_at or self.ended
        time_ = min(self.ended, traceback) if self.ended - traceback < _TEARDOWN else self.ended
        code = self.code or 0
        by_others = self.log.lost_a_peer or self.member.role.leads
        return by_others, time_, 2 if code == -signal.SIGABRT else 1 if code > 0 else 0

    def fails(self, now: float) -> bool:
        """Whether the rank still runs but is about to fail: it has just printed a traceback."""
        traceback = self.log.traceback_at
        return self.code is None and traceback is not None and now - traceback < _TEARDOWN

    def look(self, now: float) -> bool:
        """Whether the rank has just ended. It stays a zombie, so that nobody gets its number."""
        if self.code is not None:
            return False
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            exited = ended.si_code == os.CLD_EXITED
            self.code = ended.si_status if exited else -ended.si_status
            self.ended = now
        return ended is not None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the rank and all that it has started, unless the rank has ended."""
        if self.code is None:
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)


def ending(code: int) -> str:
    """How a rank ended, from its exit status.

    Args:
        code: the exit status; negative for a signal.

    Example:

    >>> from tfdist.launcher.rank import ending
    >>> ending(-11)
    'was killed by SIGSEGV (11)'
    """
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = f"signal {-code}"
    hint = "; the kernel does that when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {name} ({-code}{hint})"
