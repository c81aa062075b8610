"""What the launcher knows of the ranks of an elastic job."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Protocol

from tfdist.cluster.machines import Location
from tfdist.launcher.members import Member

IN_GROUP = ("forming", "formed", "in", "settled")
_ON_ITS_WAY = ("starting", "following", "near", "expected")


class Listener(Protocol):
    """The launcher's end of the connection to a rank."""

    def say(self, kind: str, **details: object) -> None:
        """Sends a message. A rank that is gone is noticed elsewhere."""

    def release(self) -> None:
        """Called once the rank has its own end, or is gone."""


@dataclasses.dataclass
class GroupRank:
    """A rank, or a reducer, which has no state and so none of what is about state.

    Attributes:
        member: its place in the job.
        link: the connection.
        location: where the rank is.
        is_new: whether it was started later and does not have the state of the others yet.
        is_spare: whether it waits to be called.
        state: "starting", "ready" to form a group, "forming" one, "formed", "in" a group whose
            members have all formed it, "settled" in it, "dissolved" once all have settled, "done"
            at the end of its script, or "gone". One that was started later is before that
            "following" what the others have done, "near" when it is almost there, and "expected"
            when the others wait for it.
        address: where it listens.
        completed: how many operations it has completed.
        takes_in: whether others may join where it is.
        writes: whether it has written into the journal what it has completed.
        leaves: whether it has asked to leave.
        met: after how many operations the others wait for it, once it was told that.
        was_in_group: whether it has been in a group.
        has_left: whether it has handed everything over.
        has_ended: whether its process has ended; what it said before may still arrive.
    """

    member: Member
    link: Listener
    location: Location
    is_new: bool
    is_spare: bool = False
    state: str = "starting"
    address: str = ""
    completed: int = 0
    takes_in: bool = False
    writes: bool = False
    leaves: bool = False
    met: int | None = None
    was_in_group: bool = False
    has_left: bool = False
    has_ended: bool = False

    def quit(self, generation: int) -> None:
        """Ends one that waits for others, and would not notice Ctrl-C.

        Args:
            generation: the number of the last group.
        """
        if self.only_sums:
            self.link.say("end", generation=generation)
        else:
            self.link.say("quit")

    def go(self) -> str:
        """Notes that the process has ended. Returns the state that the rank was in."""
        was, self.state = self.state, "gone"
        self.has_left |= was == "done" or (was == "dissolved" and self.leaves)
        return was

    @property
    def only_sums(self) -> bool:
        """Whether it is a reducer."""
        return self.member.kind == "reducer"

    @property
    def is_on_its_way(self) -> bool:
        """Whether it was started later and is not where the others are."""
        return self.is_new and self.state in _ON_ITS_WAY


class Roster(dict[int, GroupRank]):
    """All ranks and reducers that were started, by number."""

    def reducers(self) -> list[GroupRank]:
        """The reducers that have not been lost."""
        return [one for one in self.values() if one.only_sums and one.state != "gone"]

    def ranks(self) -> list[GroupRank]:
        """All ranks."""
        return [rank for rank in self.values() if not rank.only_sums]

    def left(self) -> list[GroupRank]:
        """The ranks that have the state of the job and have not been lost, also those done."""
        return [rank for rank in self.ranks() if rank.state != "gone" and not rank.is_new]

    def alive(self) -> list[GroupRank]:
        """The ranks that have the state of the job and still work."""
        return [rank for rank in self.left() if rank.state != "done"]

    def staying(self) -> list[GroupRank]:
        """The ranks that have the state of the job, without those that were asked to leave."""
        return [rank for rank in self.left() if not rank.leaves]

    def lost(self) -> int:
        """How many ranks were lost that had been in a group, with what only they knew."""
        gone = [rank for rank in self.ranks() if rank.state == "gone" and rank.was_in_group]
        return sum(not rank.has_left and not rank.is_new for rank in gone)

    def new(self) -> list[GroupRank]:
        """The ranks that do not have the state of the job yet, without those that wait."""
        come = [rank for rank in self.values() if rank.is_new and not rank.is_spare]
        return [rank for rank in come if rank.state != "gone"]

    def spares(self) -> list[GroupRank]:
        """The ranks that wait to be called."""
        return [rank for rank in self.values() if rank.is_spare and rank.state != "gone"]

    def coming(self) -> list[GroupRank]:
        """The new ranks that join next, one after the other.

        A rank with a lower number never joins later: the first rank is the one with the lowest
        number, and it must stay the first.
        """
        on_their_way = [rank for rank in self.new() if rank.is_on_its_way]
        far = [r.member.number for r in on_their_way if r.state not in ("near", "expected")]
        return [r for r in on_their_way if r.member.number < min(far, default=math.inf)]

    @property
    def next_number(self) -> int:
        """A number that no rank has had yet."""
        return max(self, default=-1) + 1

    def done(self) -> list[int]:
        """The numbers of the ranks whose scripts have ended."""
        return [number for number, rank in self.items() if rank.state == "done"]


def writers(ranks: Iterable[GroupRank]) -> list[GroupRank]:
    """The first rank on each machine: these write what new ranks follow.

    Args:
        ranks: of one group, by number.
    """
    first: dict[int, GroupRank] = {}
    for rank in ranks:
        first.setdefault(rank.location.machine, rank)
    return list(first.values())
