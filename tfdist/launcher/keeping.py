"""Keeps the state of an elastic job that ends for a lack of ranks, for the next one."""

from __future__ import annotations

import os

from tfdist.elastic import kept
from tfdist.launcher.group_rank import GroupRank

_PATIENCE = 300.0  # seconds, until a rank has written its state
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
        self.advice = _BACKUP
        self._since: float | None = None
        self._is_done = False

    def prepare(self, journal: str) -> None:
        """Called before ranks are started, with the path for their journal."""
        if self.restores:
            kept.copy_journal(self.folder, journal)

    def is_done(self, now: float, rank: GroupRank) -> bool:
        """Whether the state is kept, or cannot be kept.

        Args:
            now: the time.
            rank: has the state, and waits.
        """
        if not self.folder:
            return True
        if self._since is None:
            self._since = now
            rank.link.say("save")
        return self._is_done or now - self._since > _PATIENCE

    def note(self, why: str) -> None:
        """Called when the rank has kept the state, or could not: `why`."""
        self._is_done = True
        if why:
            self.advice = f"its state could not be kept ({why}); {_BACKUP}"
        else:
            self.advice = _KEPT.format(kept.path_in(self.folder))

    def remove(self) -> None:
        """Called when the job has ended well."""
        if self.folder:
            kept.path_in(self.folder).unlink(missing_ok=True)
