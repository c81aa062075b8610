"""The group of an elastic job: who is in it, when a new one is formed, and when it is too small."""

from __future__ import annotations

import dataclasses
import selectors
import time
from collections.abc import Callable, Mapping, Sequence

from tfdist.elastic.formation import Formation
from tfdist.environment import ELASTIC
from tfdist.launcher.link import Link
from tfdist.launcher.members import Member, named
from tfdist.launcher.rank import ending

Variables = Callable[[int], Sequence[Mapping[str, str]]]


@dataclasses.dataclass
class _Rank:
    """What the launcher knows of a rank.

    Attributes:
        member: its place in the job.
        link: the connection.
        state: "starting", "ready" to form a group, "forming" one, "formed", "in" a group whose
            members have all formed it, "settled" in it, "dissolved" once all have settled, "done"
            at the end of its script, or "gone".
        address: where it listens.
        leaves: whether it has asked to leave.
        has_ended: whether its process has ended; what it said before may still arrive.
    """

    member: Member
    link: Link
    state: str = "starting"
    address: str = ""
    leaves: bool = False
    has_ended: bool = False


_IN_GROUP = ("forming", "formed", "in", "settled")


class Group:
    """The ranks of an elastic job.

    Args:
        least: how few ranks may be left.
        variables: makes the environment variables for a group of so many ranks, by rank.
    """

    def __init__(self, least: int, variables: Variables):
        self._least = least
        self._variables = variables
        self._ranks: dict[int, _Rank] = {}
        self._generation = 0
        self._interrupted = 0  # the last group that is no more
        self._is_ending = False
        self._since: float | None = None  # when the last group was interrupted
        self._whys: list[str] = []
        self._recoveries = 0
        self._is_waited_for = False  # whether the next group follows at once

    def open(self, selector: selectors.BaseSelector, say: Callable[[str], None]) -> None:
        """Called before ranks are started.

        Args:
            selector: waits for messages of the ranks.
            say: tells the user something, in one line.
        """
        self._selector, self._say = selector, say

    def connect(self, member: Member) -> tuple[dict[str, str], tuple[int, ...]]:
        """A connection to a rank that is about to be started.

        Returns:
            The variables with which the rank is to be started, and the descriptors to pass on.
        """
        link = Link(lambda message: self._take(member.number, message))
        self._ranks[member.number] = _Rank(member, link)
        self._selector.register(link.fd, selectors.EVENT_READ, link)
        descriptor = link.other.fileno()
        return {ELASTIC: f"{descriptor}:{member.number}"}, (descriptor,)

    @property
    def can_spare_one(self) -> bool:
        """Whether enough ranks would be left without one of them."""
        return len(self._left()) > self._least

    def end(self) -> None:
        """Called when the job is about to end: ranks that are told to end do so at once."""
        self._is_ending = True

    # --- what ranks do ------------------------------------------------------------------------

    def _take(self, number: int, message: dict) -> None:
        rank = self._ranks[number]
        kind = message["kind"]
        if rank.has_ended:
            return
        if kind == "ready":
            if rank.state in _IN_GROUP and message["generation"] == self._generation:
                self._interrupt()
            rank.state, rank.address = "ready", message["address"]
        elif kind == "leaving":
            self._take_leaving(rank)
        elif kind == "left":
            rank.state = "gone"
        elif kind == "done":
            rank.state = "done"
        elif message["generation"] == self._generation and rank.state in _IN_GROUP:
            rank.state = kind  # "formed" or "settled"
        self._go_on()

    def _take_leaving(self, rank: _Rank) -> None:
        rank.leaves = True
        staying = [other for other in self._left() if not other.leaves]
        if self._is_ending or len(staying) < self._least:
            rank.link.say("quit")
            return
        self._change(f"{rank.member.name} was asked to leave")
        if rank.state in _IN_GROUP:
            self._interrupt()

    def ended(self, number: int, status: int) -> bool:
        """Called when a rank has ended.

        Args:
            number: the rank.
            status: its exit status; negative for a signal.

        Returns:
            Whether the job goes on without the rank.
        """
        rank = self._ranks[number]
        rank.has_ended = True
        was, rank.state = rank.state, "gone"
        rank.link.other.close()
        left = len([other for other in self._left() if not other.leaves])
        enough = was in ("gone", "done") or left >= self._least
        if was in _IN_GROUP and not self._alive() and number < min(self._numbers_of_done()):
            enough = False  # it had files to write, which nobody else writes any more
        goes_on = status <= 0 and enough and not self._is_ending
        if status < 0 and not enough and not self._is_ending:
            self._say(f"{left} ranks are left, and the job needs {self._least} (--min)")
        if goes_on and was not in ("gone", "done"):
            self._change(f"{rank.member.name} {ending(status)}")
        if goes_on and was in _IN_GROUP:
            self._interrupt()
        self._go_on()
        return goes_on

    def _numbers_of_done(self) -> list[int]:
        return [number for number, rank in self._ranks.items() if rank.state == "done"] or [0]

    def _left(self) -> list[_Rank]:
        """The ranks that have not been lost, also those that are done."""
        return [rank for rank in self._ranks.values() if rank.state != "gone"]

    def _alive(self) -> list[_Rank]:
        """The ranks that still work."""
        return [rank for rank in self._left() if rank.state != "done"]

    # --- groups -------------------------------------------------------------------------------

    def _change(self, why: str) -> None:
        """Notes why the next group is another one, for the user."""
        self._since = self._since or time.monotonic()
        self._whys.append(why)

    def _interrupt(self) -> None:
        """Frees all ranks of the group from waiting for each other."""
        self._since = self._since or time.monotonic()
        if self._interrupted == self._generation:
            return
        self._interrupted = self._generation
        for rank in self._ranks.values():
            if rank.state in _IN_GROUP:
                rank.link.say("interrupt", generation=self._generation)

    def _go_on(self) -> None:
        """Does what is due, now that the state of a rank has changed."""
        alive = self._alive()
        if not alive:
            for why in self._whys:
                self._say(why)
            self._whys = []
            for rank in self._ranks.values():
                rank.link.say("end")
        elif not self._is_ending:
            states = {rank.state for rank in alive}
            if states == {"ready"}:
                self._form(alive)
            elif states == {"formed"}:
                self._all_have_formed(alive)
            elif states == {"settled"}:
                self._to_all(alive, "settled", "dissolved")

    def _form(self, alive: list[_Rank]) -> None:
        leaving = [rank.member.number for rank in alive if rank.leaves]
        self._generation += 1
        self._is_waited_for = bool(leaving)
        if self._generation > 1 and not leaving:
            self._recoveries += 1
        variables = self._variables(len(alive))
        for place, rank in enumerate(alive):
            formation = Formation(
                self._generation,
                [other.member.number for other in alive],
                [other.address for other in alive],
                leaving,
                self._recoveries,
                variables[place],
            )
            rank.state = "forming"
            rank.link.say("form", formation=dataclasses.asdict(formation))

    def _all_have_formed(self, alive: list[_Rank]) -> None:
        self._to_all(alive, "go", "in")
        if self._since is not None and not self._is_waited_for:
            seconds = time.monotonic() - self._since
            why = "; ".join(self._whys) or "a connection between two ranks broke"
            who = named([rank.member for rank in alive])
            self._say(f"{why}; training goes on with {who}, after {seconds:.1f} s")
            self._since, self._whys = None, []

    def _to_all(self, alive: list[_Rank], kind: str, state: str) -> None:
        for rank in alive:
            rank.state = state
            rank.link.say(kind, generation=self._generation)
