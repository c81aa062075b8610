"""What a job asks of its elastic group, which may be decided here or by another launcher."""

from __future__ import annotations

import math
import selectors
import signal

from tfdist.launcher.hands import Hands
from tfdist.launcher.members import Member
from tfdist.launcher.outcome import Outcome


class JobGroup:
    """The group of an elastic job, as the job of one launcher sees it."""

    def open(self, selector: selectors.BaseSelector, hands: Hands) -> None:
        """Called before ranks are started.

        Args:
            selector: waits for messages of the ranks.
            hands: what can be done to the job.
        """
        raise NotImplementedError

    def connect(
        self, member: Member, *, is_spare: bool = False
    ) -> tuple[dict[str, str], tuple[int, ...]]:
        """A connection to a rank that is about to be started.

        Args:
            member: its place in the job.
            is_spare: whether it waits to be called.

        Returns:
            The variables with which the rank is to be started, and the descriptors to pass on.
        """
        raise NotImplementedError

    def ended(self, number: int, status: int, how: str = "") -> bool:
        """Called when a rank has ended.

        Args:
            number: the rank.
            status: its exit status; negative for a signal.
            how: what happened, if the status does not tell.

        Returns:
            Whether the job goes on without the rank.
        """
        raise NotImplementedError

    def forget(self, number: int) -> None:
        """Called when a rank could not be started."""
        raise NotImplementedError

    def end(self) -> None:
        """Called when the job is about to end: ranks that are told to end do so at once."""
        raise NotImplementedError

    def can_spare(self, number: int) -> bool:
        """Whether the job can go on without one of the ranks."""
        raise NotImplementedError

    @property
    def shortage(self) -> str:
        """Why there are too few ranks for the job to go on; "" if there are not."""
        return ""

    @property
    def lacks_spare(self) -> bool:
        """Whether a process is to be started that waits to be called."""
        return False

    @property
    def has_room(self) -> bool:
        """Whether one more rank may be started on this machine."""
        return False

    @property
    def awaits_others(self) -> bool:
        """Whether the job goes on though no rank of this machine runs."""
        return False

    @property
    def pause(self) -> float:
        """How many seconds there may be until the next `look`."""
        return math.inf

    @property
    def next_number(self) -> int:
        """The number for a rank that is about to be started."""
        raise NotImplementedError

    def replaces(self, number: int, status: int) -> bool:
        """Whether a rank that has ended, without which the job goes on, is replaced by a new one.

        Args:
            number: the rank.
            status: its exit status; negative for a signal.
        """
        return False

    def begin_spare(self) -> int | None:
        """Calls the process that has waited for longest. Returns its number; None without one."""
        return None

    def waits(self, number: int) -> bool:
        """Whether a process waits to be called."""
        return False

    def lose_spare(self) -> None:
        """Called when no process can be started that waits to be called."""

    def is_overdue(self, now: float) -> bool:
        """Whether too few ranks have waited for too long."""
        return False

    def passed_on(self, number: signal.Signals) -> signal.Signals:
        """The signal for ranks when this launcher gets `number`, which asks it to end."""
        return signal.SIGINT if number == signal.SIGINT else signal.SIGTERM

    def hurry(self) -> None:
        """Called when this launcher is asked to end once more: it waits for no other one."""

    def look(self, now: float) -> None:
        """Does what is due by the clock."""

    def end_others(self, decided: Outcome | None) -> None:
        """Called when ranks are told to end, with the outcome if it is known."""

    def unwatch(self) -> None:
        """Called before the rest of what ranks have printed is read."""

    def concluded(self, own: Outcome) -> Outcome:
        """The outcome of the job, once all ranks have ended; from that on this machine."""
        return own
