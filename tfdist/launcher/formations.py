"""The groups that the ranks of an elastic job form, one after the other."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from tfdist.cluster.machines import Location
from tfdist.elastic.formation import Formation
from tfdist.launcher.group_rank import IN_GROUP, GroupRank, Roster, writers
from tfdist.launcher.members import named

Variables = Callable[[Sequence[Location]], Sequence[Mapping[str, str]]]
"""Makes the environment variables for a group of ranks, from where each of them is."""


class Formations:
    """Forms groups, and tells the user why.

    Args:
        ranks: all ranks.
        variables: makes the environment variables for a group.

    Attributes:
        generation: the number of the last group; 0 before the first one.
        current: its members.
        reducers: the reducers that sum for them.
        say: tells the user something, in one line.
    """

    def __init__(self, ranks: Roster, variables: Variables):
        self.generation = 0
        self.current: list[GroupRank] = []
        self.reducers: list[GroupRank] = []
        self.say: Callable[[str], None] = print
        self._ranks = ranks
        self._variables = variables
        self._interrupted = 0  # the last group that is no more
        self._since: float | None = None  # when the last group was interrupted
        self._whys: list[str] = []
        self._recoveries = 0
        self._is_interim = False  # whether the next group follows at once
        self._is_asked = False  # whether ranks were asked to come back, as others wait to join
        self._first_reducers: int | None = None

    def change(self, why: str) -> None:
        """Notes why the next group is another one, for the user."""
        self._since = self._since or time.monotonic()
        self._whys.append(why)

    def interrupt(self) -> None:
        """Frees all ranks of the group from waiting for each other."""
        self._since = self._since or time.monotonic()
        if self._interrupted == self.generation:
            return
        self._interrupted = self.generation
        for rank in self._ranks.values():
            if rank.state in IN_GROUP:
                rank.link.say("interrupt", generation=self.generation)

    def ask_to_take_in(self) -> None:
        """Asks the ranks in a group to come back, if new ranks are about to join."""
        for rank in self._ranks.alive() if self._ranks.coming() else ():
            if rank.state in IN_GROUP:
                self._is_asked = True
                rank.link.say("take_in")

    def form(self, members: list[GroupRank], *, is_interim: bool) -> None:
        """Forms a group.

        Args:
            members: the ranks in it.
            is_interim: whether it only comes to the next step, before which others join it.
        """
        members = sorted(members, key=lambda rank: rank.member.number)
        leaving = [rank.member.number for rank in members if rank.leaves]
        self.generation += 1
        self.current = members
        self._is_interim = is_interim or bool(leaving)
        is_other = bool(self._whys) or any(rank.is_new for rank in members)
        if self.generation > 1 and not self._is_interim and (is_other or not self._is_asked):
            self._recoveries += 1
        variables = self._variables([rank.location for rank in members])
        writing = writers(members)
        # A rank alone has nothing to sum.
        self.reducers = [r for r in self._ranks.reducers() if r.state == "ready" and members[1:]]
        for place, rank in enumerate(members):
            rank.state, rank.was_in_group = "forming", True
            formation = Formation(
                self.generation,
                [other.member.number for other in members],
                [other.address for other in members],
                leaving,
                [other.member.number for other in members if other.is_new],
                waiting=is_interim,
                recoveries=self._recoveries,
                lost=self._ranks.lost(),
                writes=rank in writing,
                reducers=[reducer.member.number for reducer in self.reducers],
                reducer_addresses=[reducer.address for reducer in self.reducers],
                first_reducers=self._count_first_reducers(),
                variables=variables[place],
            )
            self._tell(rank, formation)
        for reducer in self.reducers:
            reducer.state = "forming"
            self._tell(reducer, formation)

    def set_apart(self, rank: GroupRank, *, restores: bool) -> None:
        """Lets a rank come to the others alone.

        Args:
            rank: was started later, or gets its state from the backup.
            restores: whether it gets its state from the backup.
        """
        alone = [rank.member.number], [rank.address]
        formation = Formation(
            0,
            *alone,
            is_apart=True,
            restores=restores,
            first_reducers=self._count_first_reducers(),
            variables=self._variables([rank.location])[0],
        )
        self._tell(rank, formation)

    def _count_first_reducers(self) -> int:
        if self._first_reducers is None:
            self._first_reducers = len(self._ranks.reducers())
        return self._first_reducers

    def _tell(self, rank: GroupRank, formation: Formation) -> None:
        rank.link.say("form", formation=dataclasses.asdict(formation))

    @property
    def have_formed(self) -> bool:
        """Whether all members and reducers have formed the last group, and nobody was told so."""
        states = {one.state for one in (*self.current, *self.reducers)}
        return states == {"formed"} and self._interrupted < self.generation

    def note_formed(self) -> None:
        """Called when all members and reducers have formed the last group."""
        self.to_all("go", "in")
        for reducer in self.reducers:
            reducer.state = "in"
            reducer.link.say("go", generation=self.generation)
        if self._since is None or self._is_interim:
            return
        seconds = time.monotonic() - self._since
        whys = [*self._whys, *(f"{r.member.name} joins" for r in self.current if r.is_new)]
        if not whys and not self._is_asked:
            whys = ["a connection between two ranks broke"]
        who = named([rank.member for rank in (*self.current, *self.reducers)])
        if whys:
            self.say(f"{'; '.join(whys)}; training goes on with {who}, after {seconds:.1f} s")
        self._since, self._whys, self._is_asked = None, [], False

    def say_what_is_left(self) -> None:
        """Tells the user what no group has followed."""
        for why in self._whys:
            self.say(why)
        self._whys = []

    def to_all(self, kind: str, state: str) -> None:
        """Tells the members of the last group that all of them are in one state."""
        for rank in self.current:
            rank.state = state
            rank.link.say(kind, generation=self.generation)
