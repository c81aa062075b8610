"""How a rank that is started later comes to where the others are: it follows their journal.

Its script runs from the beginning. Each operation gives the result that it had in the other ranks,
and computes nothing. So all that the script does between operations, and all that depends on their
results, is as in the others. The variables are handed over when the rank has arrived.
"""

from __future__ import annotations

import time

from tfdist.elastic.journal import Entry, Journal
from tfdist.elastic.link import Link
from tfdist.elastic.operations import Operation

_POLL = 0.01  # seconds


class CannotJoinError(RuntimeError):
    """A rank cannot come to where the others are."""


class Following:
    """The way of this rank to the others.

    Args:
        link: the connection to the launcher.
        journal: what the others have done.
        meeting_point: how many operations there are, if nobody does more; None if others train.
        path: where the state is that this rank gets then.

    Attributes:
        count: how many operations it has passed.
    """

    def __init__(
        self, link: Link, journal: Journal, meeting_point: int | None = None, path: str = ""
    ):
        self.count = 0
        self._link = link
        self._journal = journal
        self._meeting_point = meeting_point
        self._kept = path if meeting_point is not None else ""
        self._has_asked = False

    def next(self, operation: Operation) -> Entry | None:
        """What `operation` has come to in the others; None if they wait before it for this rank.

        Raises:
            CannotJoinError: when this rank does something else than the others did.
        """
        while self.count != self._meeting_point:
            entry = self._journal.read(is_last=self._meeting_point == self.count + 1)
            if entry is not None:
                self._check(operation, entry)
                self.count += 1
                return entry
            if self._kept:
                raise CannotJoinError(f"The state of the job is not whole: remove {self._kept}.")
            why = self._journal.why_ended()
            if why:
                raise CannotJoinError(
                    f"This rank was started later and cannot join the others: {why}."
                )
            if not self._has_asked:
                self._has_asked = True
                self._link.say("near")
            if self._meeting_point is None:
                self._meeting_point = self._link.meeting_point(_POLL)
            else:
                time.sleep(_POLL)
        return None

    def _check(self, operation: Operation, entry: Entry) -> None:
        if entry.kind == operation.kind:
            return
        if self._kept:
            raise CannotJoinError(
                "The script does something else than in the job whose state was kept "
                "(--backup-dir). It must do the same each time that it runs. To begin anew, remove "
                f"{self._kept}. Received: a {operation.kind} as operation {self.count}, not a "
                f"{entry.kind}"
            )
        raise CannotJoinError(
            "This rank was started later, and its script does something else than those of the "
            "others did, so it cannot join them. A script that ranks may join must do the same "
            "each time: make its decisions from its arguments and from results of training. "
            f"Received: a {operation.kind} as operation {self.count}, not a {entry.kind}"
        )
