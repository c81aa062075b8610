"""Keeps the state of an elastic job that ends for a lack of ranks, for the next one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from tfdist.elastic import kept
from tfdist.launcher.group_rank import GroupRank

# Seconds, until a rank has written its state. One that dies meanwhile is noticed.
_PATIENCE = 3600.0
_BACKUP = "start it again: with BackupAndRestore it goes on from the last backup"
_KEPT = "start the same command again: it goes on from its state in {}"


class Keeping:
    """Lets a rank keep the state of the job.

    Args:
        folder: where; "" if nothing is to be kept.

    Attributes:
        folder: as above.
        restores: whether the job goes on from a state that was kept.
        advice: what the user can do after the end.
    """

    def __init__(self, folder: str):
        self.folder = os.path.abspath(folder) if folder else ""
        self.restores = bool(folder) and kept.path_in(folder).exists()
        self.advice = _KEPT.format(kept.path_in(folder)) if self.restores else _BACKUP
        self._question = 0
        self._asked: GroupRank | None = None
        self._since = 0.0
        self._is_answered = False

    def prepare(self, journal: str, say: Callable[[str], None]) -> None:
        """Called before ranks are started.

        Args:
            journal: the path for their journal.
            say: tells the user something, in one line.

        Raises:
            NotKeptError: when there is no state that can be used.
        """
        if self.restores:
            path = kept.path_in(self.folder)
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(path.stat().st_mtime))
            kept.copy_journal(self.folder, journal)
            say(f"going on from the state of {at} in {path}; remove it to begin anew")

    def is_done(self, now: float, rank: GroupRank) -> bool:
        """Whether the state is kept, or cannot be kept.

        Args:
            now: the time.
            rank: has the state, and waits.
        """
        if not self.folder:
            return True
        if self._asked is not rank:
            self._asked, self._since, self._is_answered = rank, now, False
            self._question += 1
            rank.link.say("save", question=self._question)
        return self._is_answered or now - self._since > _PATIENCE

    def begin_anew(self) -> None:
        """Called when the ranks go on, so that what was kept is not their state any more."""
        self._asked = None

    def note(self, question: int, why: str) -> None:
        """Called when a rank has kept the state.

        Args:
            question: the number of the question that it answers.
            why: why it could not; "" if it could.
        """
        if question != self._question or self._asked is None:
            return
        self._is_answered = True
        path = kept.path_in(self.folder)
        if not why and not path.exists():  # a rank of another machine has kept it
            why = f"there is no {path} here, so the folder is not shared by all machines"
        self.advice = (
            f"its state could not be kept ({why}); {_BACKUP}" if why else _KEPT.format(path)
        )

    def end(self, *, was_reached: bool, say: Callable[[str], None]) -> None:
        """Called when the job has ended well.

        Args:
            was_reached: whether the ranks have trained.
            say: tells the user something, in one line.
        """
        if self.restores and not was_reached:
            say(f"the state in {kept.path_in(self.folder)} was not used, and stays")
        elif self.folder:
            kept.remove(self.folder)
