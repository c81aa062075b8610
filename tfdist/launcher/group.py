"""The group of an elastic job: who is in it, when a new one is formed, and when it is too small."""

from __future__ import annotations

import dataclasses
import math
import selectors
import time
from collections.abc import Callable, Mapping, Sequence

from tfdist.elastic.formation import Formation
from tfdist.environment import ELASTIC, JOURNAL
from tfdist.launcher.group_rank import IN_GROUP, GroupRank, Roster
from tfdist.launcher.headcount import Headcount
from tfdist.launcher.link import Link
from tfdist.launcher.members import Member, named
from tfdist.launcher.rank import ending

Variables = Callable[[int], Sequence[Mapping[str, str]]]


class Group:
    """The ranks of an elastic job.

    Args:
        least: as for `Headcount`.
        variables: makes the environment variables for a group of so many ranks, by rank.
        restarts: as for `Headcount`.
        patience: as for `Headcount`.
        journal: the path of a file for what ranks do, which new ones follow; "" without restarts.

    Attributes:
        headcount: whether enough ranks are left.
    """

    def __init__(
        self,
        least: int,
        variables: Variables,
        *,
        restarts: int = 0,
        patience: float = math.inf,
        journal: str = "",
    ):
        self._variables = variables
        self._journal = {JOURNAL: journal} if journal else {}
        self._ranks = Roster()
        self.headcount = Headcount(self._ranks, least, restarts, patience)
        self._generation = 0
        self._interrupted = 0  # the last group that is no more
        self._is_ending = False
        self._since: float | None = None  # when the last group was interrupted
        self._whys: list[str] = []
        self._recoveries = 0
        self._is_waited_for = False  # whether the next group follows at once

    def open(
        self,
        selector: selectors.BaseSelector,
        say: Callable[[str], None],
        kill: Callable[[int], None],
    ) -> None:
        """Called before ranks are started.

        Args:
            selector: waits for messages of the ranks.
            say: tells the user something, in one line.
            kill: ends the rank with a number.
        """
        self._selector, self._say, self._kill = selector, say, kill

    def connect(self, member: Member) -> tuple[dict[str, str], tuple[int, ...]]:
        """A connection to a rank that is about to be started.

        Returns:
            The variables with which the rank is to be started, and the descriptors to pass on.
        """
        link = Link(lambda message: self._take(member.number, message))
        self._ranks[member.number] = GroupRank(member, link, is_new=self._generation > 0)
        self._selector.register(link.fd, selectors.EVENT_READ, link)
        descriptor = link.other.fileno()
        return {ELASTIC: f"{descriptor}:{member.number}", **self._journal}, (descriptor,)

    def can_spare(self, number: int) -> bool:
        """Whether enough ranks would be left without one of them, or a new one replaces it."""
        return self.headcount.can_spare(self._ranks[number])

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
            self._take_ready(rank, message)
        elif kind == "leaving":
            self._take_leaving(rank)
        elif kind == "left":
            rank.state = "gone"
        elif kind == "done":
            rank.state = "done"
        elif kind == "near":
            rank.state = "near"
            self._ask_to_take_in()
        elif kind == "joined":
            rank.is_new = False
            self.headcount.note_growth()
        elif message["generation"] == self._generation and rank.state in IN_GROUP:
            rank.state = kind  # "formed" or "settled"
        self._go_on()

    def _take_ready(self, rank: GroupRank, message: dict) -> None:
        rank.address = message["address"]
        rank.completed, rank.takes_in = message["completed"], message["takes_in"]
        rank.writes = message["writes"]
        if rank.state == "starting" and self._generation:
            rank.is_new, rank.state = True, "following"
            alone = [rank.member.number], [rank.address]
            variables = self._variables(1)[0]
            self._tell(rank, Formation(0, *alone, is_apart=True, variables=variables))
            return
        if rank.state in IN_GROUP and message["generation"] == self._generation:
            self._interrupt()
        rank.state = "ready"

    def _take_leaving(self, rank: GroupRank) -> None:
        rank.leaves = True
        if self._is_ending or rank.is_new or not self.headcount.suffices(rank, 0):
            rank.link.say("quit")
            return
        why = f"{rank.member.name} was asked to leave"
        self.headcount.note_loss(why, self._say, waits=True)
        self._change(why)
        if rank.state in IN_GROUP:
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
        enough = was in ("gone", "done") or self.headcount.suffices(rank, status)
        if was in IN_GROUP and not self._ranks.alive() and number < min(self._ranks.done() or [0]):
            enough = False  # it had files to write, which nobody else writes any more
        fails = status > 0 and not rank.is_new
        goes_on = enough and not fails and not self._is_ending
        if was not in ("gone", "done") and not fails and not self._is_ending:
            why = f"{rank.member.name} {ending(status)}"
            self.headcount.note_loss(why, self._say, waits=goes_on)
        if goes_on and was not in ("gone", "done"):
            self._note_end(rank, status)
        if goes_on and was in IN_GROUP:
            self._interrupt()
        self._go_on()
        return goes_on

    def _note_end(self, rank: GroupRank, status: int) -> None:
        how = f"{rank.member.name} {ending(status)}"
        if rank.is_new and self._ranks.alive():
            self._say(f"{how} before it had joined the others")
        elif not rank.is_new:
            self._change(how)

    def replaces(self, number: int, status: int) -> bool:
        """Whether a rank that has ended, without which the job goes on, is replaced by a new one.

        Args:
            number: the rank.
            status: its exit status; negative for a signal.
        """
        return self.headcount.replaces(self._ranks[number], status)

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
            if rank.state in IN_GROUP:
                rank.link.say("interrupt", generation=self._generation)

    def _go_on(self) -> None:
        """Does what is due, now that the state of a rank has changed."""
        alive = self._ranks.alive()
        if not alive:
            self._end_all()
        elif not self._is_ending:
            gathered = [*alive, *(rank for rank in self._ranks.new() if not rank.is_on_its_way)]
            states = {rank.state for rank in gathered}
            if states == {"ready"}:
                self._all_are_ready(alive, gathered)
            elif states == {"formed"}:
                self._all_have_formed(gathered)
            elif states == {"settled"}:
                self._to_all(gathered, "settled", "dissolved")

    def _end_all(self) -> None:
        for why in self._whys if not self._is_ending else ():
            self._say(why)
        self._whys = []
        for number, rank in self._ranks.items():
            if rank.is_new:
                self._kill(number)
            else:
                rank.link.say("end")

    def _ask_to_take_in(self) -> None:
        for rank in self._ranks.alive():
            if rank.state in IN_GROUP:
                rank.link.say("take_in")

    def _all_are_ready(self, alive: list[GroupRank], gathered: list[GroupRank]) -> None:
        """Forms a group, or waits for ranks that join."""
        coming = [rank for rank in self._ranks.new() if rank.state in ("near", "expected")]
        is_short = len(gathered) + len(self._ranks.done()) < self.headcount.least
        can_take_in = len({rank.completed for rank in alive}) == 1 and all(
            rank.takes_in and not rank.leaves for rank in alive
        )
        if coming:  # they read what the others have done
            can_take_in &= alive[0].writes
        if (coming or is_short or len(gathered) > len(alive)) and not can_take_in:
            self._form(alive, waiting=True)
        elif coming:
            for rank in coming:
                if rank.state == "near":
                    rank.state = "expected"
                    rank.link.say("meet", completed=alive[0].completed)
        elif not is_short:
            self._form(gathered, waiting=False)

    def _form(self, gathered: list[GroupRank], *, waiting: bool) -> None:
        leaving = [rank.member.number for rank in gathered if rank.leaves]
        self._generation += 1
        self._is_waited_for = bool(leaving) or waiting
        if self._generation > 1 and not self._is_waited_for:
            self._recoveries += 1
        for rank in gathered:
            if rank.is_new:
                self._change(f"{rank.member.name} joins")
        variables = self._variables(len(gathered))
        for place, rank in enumerate(gathered):
            rank.state = "forming"
            formation = Formation(
                self._generation,
                [other.member.number for other in gathered],
                [other.address for other in gathered],
                leaving,
                [other.member.number for other in gathered if other.is_new],
                waiting=waiting,
                recoveries=self._recoveries,
                variables=variables[place],
            )
            self._tell(rank, formation)

    def _tell(self, rank: GroupRank, formation: Formation) -> None:
        rank.link.say("form", formation=dataclasses.asdict(formation))

    def _all_have_formed(self, gathered: list[GroupRank]) -> None:
        self._to_all(gathered, "go", "in")
        if self._since is not None and not self._is_waited_for:
            seconds = time.monotonic() - self._since
            why = "; ".join(self._whys) or "a connection between two ranks broke"
            who = named([rank.member for rank in gathered])
            self._say(f"{why}; training goes on with {who}, after {seconds:.1f} s")
            self._since, self._whys = None, []

    def _to_all(self, gathered: list[GroupRank], kind: str, state: str) -> None:
        for rank in gathered:
            rank.state = state
            rank.link.say(kind, generation=self._generation)
