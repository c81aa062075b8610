"""Lets new ranks on machines without a journal follow that of another machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from tfdist.launcher.distant import Machine
from tfdist.launcher.group_rank import GroupRank, Roster
from tfdist.launcher.journal_copy import JournalCopy
from tfdist.rendezvous.channel import Message

_OWN = 0  # the number of the machine where the launcher serves


class Journals:
    """The journals of all machines, in the launcher that serves.

    Args:
        ranks: all ranks.
        path: of the journal on this machine.
        machine: finds a machine by its number; None for the one of this launcher.
    """

    def __init__(self, ranks: Roster, path: str, machine: Callable[[int], Machine | None]):
        self._ranks = ranks
        self._machine = machine
        self._own = JournalCopy(path, lambda after, offset: self.answer(None, after, offset))

    def look(self, now: float) -> None:
        """Copies for new ranks of this machine, if there are any."""
        if self._follow(_OWN):
            self._own.look(now)

    @property
    def pause(self) -> float:
        """How many seconds there may be until the next `look`."""
        return self._own.pause if self._follow(_OWN) else math.inf

    def _follow(self, machine: int) -> list[GroupRank]:
        return [rank for rank in self._ranks.new() if rank.location.machine == machine]

    def _writes(self, machine: int) -> bool:
        """Whether a rank of a machine writes the journal there."""
        return any(rank.location.machine == machine for rank in self._ranks.alive())

    def answer(self, asking: Machine | None, after: int, offset: int) -> None:
        """Lets a machine have what follows after so many entries and bytes.

        Args:
            asking: the machine; None for this one.
            after: as for `JournalCopy.piece`.
            offset: as for `JournalCopy.piece`.
        """
        number = asking.location.machine if asking is not None else _OWN
        alive = self._ranks.alive()
        if self._writes(number):
            self._say_written(asking)
            return
        if not alive:
            return  # all are done, and new ranks are about to be ended
        source = alive[0].location.machine
        met = [rank.met for rank in self._follow(number) if rank.met is not None]
        certain, most = max(met, default=0), min(met, default=None)
        other = self._machine(source)
        if other is not None:
            asked = {"after": after, "offset": offset, "certain": certain, "most": most}
            other.send("read", machine=number, **asked)
        elif source == _OWN:
            self._forward(source, number, self._own.piece(after, offset, certain, most))

    def _say_written(self, asking: Machine | None) -> None:
        if asking is None:
            self._own.is_written(time.monotonic())
        else:
            asking.send("written")

    def pass_on(self, source: Machine, number: int, piece: Message) -> None:
        """Passes on what a machine has found for the machine with a number."""
        self._forward(source.location.machine, number, piece)

    def _forward(self, source: int, number: int, piece: Message) -> None:
        machine = self._machine(number)
        if machine is not None:
            machine.send("piece", source=source, piece=piece)
        elif number == _OWN and not self._writes(number):  # or else the answer comes too late
            self._own.take(source, piece, time.monotonic())
