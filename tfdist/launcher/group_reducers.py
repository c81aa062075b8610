"""The reducers of an elastic job: processes that only sum, so that nothing is lost with one."""

from __future__ import annotations

from collections.abc import Callable

from tfdist.launcher.formations import Formations
from tfdist.launcher.group_rank import IN_GROUP, GroupRank, Roster


class GroupReducers:
    """The reducers of an elastic job.

    Each new group has the reducers that are there. When one is lost, the ranks form a new group and
    repeat the step; the other reducers then have its work, or the ranks, if there are none. One
    that comes later has work from the next group on.

    Args:
        ranks: all ranks and reducers.
        formations: forms the groups.
    """

    def __init__(self, ranks: Roster, formations: Formations):
        self._ranks = ranks
        self._formations = formations

    def take_ready(self, reducer: GroupRank, message: dict) -> None:
        """Called when a reducer is in no group."""
        generation = self._formations.generation
        if reducer.state in IN_GROUP and message["generation"] == generation:
            self._formations.interrupt()  # it has lost a rank
        elif reducer.state == "starting" and generation and self._are_needed:
            self._formations.change(f"{reducer.member.name} joins")
            self._formations.interrupt()
        reducer.state, reducer.address = "ready", message["address"]

    @property
    def _are_needed(self) -> bool:
        """Whether several ranks train, and none of them has ended: it has its last result."""
        return len(self._ranks.alive()) > 1 and not self._ranks.done()

    def are_ready(self) -> bool:
        """Whether the reducers wait for a new group; those who do not are told to leave theirs.

        Nobody waits for reducers that are started later.
        """
        reducers = self._ranks.reducers()
        for reducer in reducers:
            if reducer.state in IN_GROUP:
                reducer.link.say("interrupt", generation=self._formations.generation)
        has_begun = self._formations.generation > 0
        return all(
            one.state == "ready" or (has_begun and one.state == "starting") for one in reducers
        )

    def ended(self, reducer: GroupRank, was: str, how: str, say: Callable[[str], None]) -> None:
        """Called when a reducer has ended, without which the job goes on.

        Args:
            reducer: the reducer.
            was: the state in which it was.
            how: what happened.
            say: tells the user something, in one line.
        """
        if was in IN_GROUP:
            self._formations.change(how)
            self._formations.interrupt()
        else:
            say(f"{how}; the job goes on without it")
