"""Forms groups with other ranks, as the launcher says."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator

from tfdist.elastic.connection import Connection
from tfdist.elastic.formation import Formation
from tfdist.elastic.journal import Journal
from tfdist.elastic.link import Link

# A rank that cannot form so many groups, one after the other, has another cause than lost ranks.
_MOST_ATTEMPTS = 20


class GroupIsNoMoreError(Exception):
    """A member was lost, is about to leave, or waits to join."""


class Forming:
    """A rank in groups that change.

    Args:
        link: the connection to the launcher.
        own: the number that the launcher has given to this process.
        connection: connects the processes.
        journal: where ranks that are started later read what the ranks have done; None if there
            are no such ranks.

    Attributes:
        rank: this process' place in the group, 0-based.
        size: the number of ranks in the group.
        generation: the number of the group; 0 before the first one.
        members: the numbers of the ranks, by rank.
        recoveries: how often the group has changed.
    """

    def __init__(
        self, link: Link, own: int, connection: Connection, journal: Journal | None = None
    ):
        self.rank, self.size, self.generation = 0, 1, 0
        self.members: list[int] = [own]
        self.recoveries = 0
        self._link = link
        self._own = own
        self._connection = connection
        self._journal = journal
        self._is_connected = False
        self._writes = False
        self._completed = 0
        self._watchers: list[Callable[[], None]] = []
        # The highest number of a group that is no more; written by the thread that listens.
        self._no_more = 0
        self._forming = threading.Lock()

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after each change of the group."""
        self._watchers.append(watcher)

    def _stand_at(self, rank: int, size: int) -> None:
        """Takes a place in a group of so many ranks."""
        if (rank, size) != (self.rank, self.size):
            self.rank, self.size = rank, size
            self._announce()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """In this context a rank that follows the others is the only one of its group."""
        size = self.size
        self._stand_at(1, 1)
        try:
            yield
        finally:
            self._stand_at(size, size)

    def _announce(self) -> None:
        for watcher in self._watchers:
            watcher()

    def _check(self) -> None:
        if self._link.has_left:
            raise SystemExit(0)  # the others have gone on, whatever is still to be done here
        if self.generation <= self._no_more:
            raise GroupIsNoMoreError

    def _is_loss(self, error: BaseException | None) -> bool:
        """Whether `error`, or one that it was made from, says that a rank is lost."""
        while error is not None:
            if isinstance(error, GroupIsNoMoreError):
                return True
            if isinstance(error, Exception) and self._connection.is_loss(error):
                return True
            error = error.__cause__ or error.__context__
        return False

    def _form(self, takes_in: bool = False, save: Callable[[], None] | None = None) -> Formation:
        """Forms the next group. Waits until all of its members have formed it.

        Args:
            takes_in: whether others may join now.
            save: keeps the state of this rank, if the launcher asks for it meanwhile.
        """
        for attempt in itertools.count(1):
            if self._is_connected:
                with self._forming:
                    self._connection.leave()
            self._link.say(
                "ready",
                generation=self.generation,
                address=self._connection.address,
                completed=self._completed,
                takes_in=takes_in,
                writes=self._journal is not None and self._journal.has(self._completed),
            )
            formation = self._link.formation(save)
            with self._forming:
                self._is_connected = True
                if formation.is_apart:
                    self._connection.form(formation, self._own)
                    return formation
                self.generation = formation.generation
                self.members = list(formation.members)
                self.rank, self.size = self.members.index(self._own), len(self.members)
                self.recoveries = formation.recoveries
                self._writes = formation.writes
                try:
                    self._check()
                    self._connection.form(formation, self._own)
                except Exception as error:
                    if not self._is_loss(error) or attempt >= _MOST_ATTEMPTS:
                        raise
                    continue
            self._announce()
            self._link.say("formed", generation=self.generation)
            if self._link.waits_for("go", self.generation):
                return formation
        raise AssertionError  # the loop has no other end

    def _interrupt(self, generation: int) -> None:
        """Frees this process from operations of a group that is no more; in another thread."""
        self._no_more = max(self._no_more, generation)
        with self._forming:
            if self.generation == generation:
                self._connection.interrupt()
