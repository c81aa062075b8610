"""How a job ended, and what to say about it."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from tfdist.launcher.members import named
from tfdist.launcher.rank import Rank, ending

TIMED_OUT = 124  # as timeout(1)
TOO_FEW = 75  # as EX_TEMPFAIL of sysexits.h: the same job may succeed later


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: the exit status for the launcher.
        message: what happened, in one line; "" when all went well.
        rank: the rank whose last lines tell more; None for no rank.
    """

    status: int = 0
    message: str = ""
    rank: Rank | None = None


def of_ranks(ranks: Sequence[Rank], told: float, started: float) -> Outcome:
    """The outcome of a job that nobody ended from outside, once all ranks have ended.

    Args:
        ranks: all ranks.
        told: when the ranks were told to end.
        started: when the job was started.
    """
    by_themselves = [rank for rank in ranks if rank.ended <= told]
    for leader in by_themselves:
        if leader.member.role.leads and leader.code == 0:
            lost = [rank for rank in ranks if rank.code and rank.ended < leader.ended]
            return Outcome(
                message=f"training ended well, but without {_named(lost)}" if lost else ""
            )
    failed = [rank for rank in by_themselves if rank.code and not rank.spared]
    if not failed:
        return Outcome()
    first = min(failed, key=lambda rank: rank.failed_at)
    code = first.code or 0
    left = _left(by_themselves, first)
    if left:
        text = "before the others, which were still training"
        message = f"{_named(left)} ended with status 0 {text}, after {_age(left[0], started)}"
        message += f"; {_named(failed)} then failed"
    else:
        message = f"{first.name} {ending(code)} after {_age(first, started)}"
    too = [rank for rank in failed if rank is not first]
    if too and not left:
        message += f"; {_named(too)} then failed too"
    if any(rank.code for rank in ranks if rank.ended > told):
        message += "; the other ranks were ended"
    return Outcome(code if code > 0 else 128 - code, message, left[0] if left else first)


def _left(by_themselves: Sequence[Rank], first: Rank) -> list[Rank]:
    """The ranks that had ended well, if `first` failed because other ranks were gone.

    Args:
        by_themselves: the ranks that nobody told to end.
        first: the first rank that failed.
    """
    if not first.log.lost_a_peer:
        return []
    return sorted((rank for rank in by_themselves if rank.code == 0), key=lambda rank: rank.ended)


def _age(rank: Rank, started: float) -> str:
    return f"{rank.ended - started:.1f} s"


def too_few(shortage: str, rank: Rank | None = None) -> Outcome:
    """The outcome of an elastic job with too few ranks.

    Args:
        shortage: what happened, and what the user can do.
        rank: the last rank that was lost.
    """
    return Outcome(TOO_FEW, shortage, rank)


def timed_out(ranks: Sequence[Rank], total: float) -> Outcome:
    """The outcome of a job that was still running after `total` seconds."""
    running = [rank for rank in ranks if rank.code is None]
    who = _named(running) or "ranks of other machines"
    message = f"the job was ended after {total:g} s (--timeout); {who} still ran"
    return Outcome(TIMED_OUT, message, running[0] if len(running) == 1 else None)


def stopped(rank: Rank, then: str) -> Outcome:
    """The outcome of a job that ended because a rank was stopped; `then` ends the sentence."""
    return Outcome(TIMED_OUT, f"{rank.name} was stopped (SIGSTOP){then}", rank)


def ended_by(number: signal.Signals) -> Outcome:
    """The outcome of a job that was ended by a signal to the launcher."""
    return Outcome(128 + number, f"ended by {number.name}, and all ranks with it")


def _named(ranks: Sequence[Rank]) -> str:
    return named([rank.member for rank in ranks])
