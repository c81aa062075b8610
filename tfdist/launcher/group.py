"""The group of an elastic job: who is in it, when a new one is formed, and when it is too small."""

from __future__ import annotations

import functools
import selectors

from tfdist.cluster.machines import Location
from tfdist.environment import BACKUP_DIR, ELASTIC, ELASTIC_HOST, JOURNAL
from tfdist.launcher.elastic_limits import ElasticLimits
from tfdist.launcher.formations import Formations, Variables
from tfdist.launcher.group_rank import IN_GROUP, GroupRank, Roster
from tfdist.launcher.group_reducers import GroupReducers
from tfdist.launcher.hands import Hands
from tfdist.launcher.headcount import Headcount
from tfdist.launcher.job_group import JobGroup
from tfdist.launcher.keeping import Keeping
from tfdist.launcher.link import Link
from tfdist.launcher.members import Member
from tfdist.launcher.next_group import form_or_wait
from tfdist.launcher.outcome import Outcome
from tfdist.launcher.rank import ending


class Group(JobGroup):
    """The ranks of an elastic job, where it is decided who is in the group.

    Args:
        limits: how the job may change.
        variables: as for `Formations`.
        host: the address of this machine, as other machines reach it.
        location: where the ranks of this machine are.
        journal: the path of a file for what ranks do, which new ones follow; "" without new ones.
        keeping: keeps the state before the job ends.
    """

    def __init__(
        self,
        limits: ElasticLimits,
        variables: Variables,
        host: str,
        location: Location,
        journal: str,
        keeping: Keeping,
    ):
        given = {ELASTIC_HOST: host, JOURNAL: journal, BACKUP_DIR: keeping.folder}
        self._common = {name: value for name, value in given.items() if value}
        self._keeping = keeping
        self._location = location
        self._ranks = Roster()
        self._formations = Formations(self._ranks, variables)
        self._reducers = GroupReducers(self._ranks, self._formations)
        self._headcount = Headcount(self._ranks, limits, keeping)
        self._is_ending = False

    def open(self, selector: selectors.BaseSelector, hands: Hands) -> None:
        """See `JobGroup`."""
        self._selector, self._hands = selector, hands
        self._formations.say = hands.say
        self._keeping.prepare(self._common.get(JOURNAL, ""), hands.say)

    @property
    def next_number(self) -> int:
        """The number for a rank that is about to be started."""
        return self._ranks.next_number

    def connect(
        self, member: Member, *, is_spare: bool = False
    ) -> tuple[dict[str, str], tuple[int, ...]]:
        """See `JobGroup`."""
        number = member.number
        link, is_new = Link(functools.partial(self._take, number)), self._is_new(member)
        self._ranks[number] = GroupRank(member, link, self._location, is_new, is_spare)
        self._selector.register(link.fd, selectors.EVENT_READ, link)
        descriptor = link.other.fileno()
        return {ELASTIC: f"{descriptor}:{number}", **self._common}, (descriptor,)

    @property
    def _has_formed(self) -> bool:
        return self._formations.generation > 0

    def _is_new(self, member: Member) -> bool:
        """Whether a rank gets its state from others. In a job that goes on, rank 0 has it first."""
        is_later = self._has_formed or (self._keeping.restores and member.number > 0)
        return member.kind == "rank" and is_later

    @property
    def lacks_spare(self) -> bool:
        """Whether a process is to be started that waits to be called; not before all have begun."""
        has_begun = any(rank.state == "in" for rank in self._formations.current)
        return has_begun and not self._is_ending and self._headcount.lacks_spare

    def begin_spare(self) -> int | None:
        """See `JobGroup`."""
        for rank in self._ranks.spares():
            rank.is_spare = False
            rank.link.say("begin")
            return rank.member.number
        return None

    def waits(self, number: int) -> bool:
        """See `JobGroup`."""
        return self._ranks[number].is_spare

    def forget(self, number: int) -> None:
        """Called when a rank could not be started."""
        if number in self._ranks:
            rank = self._ranks[number]
            rank.state, rank.has_ended = "gone", True
            rank.link.release()
            self._go_on()

    @property
    def has_room(self) -> bool:
        """See `JobGroup`."""
        may_follow = JOURNAL in self._common and bool(self._ranks.alive())
        return may_follow and not self._is_ending and self._headcount.room >= 1

    @property
    def shortage(self) -> str:
        """See `JobGroup`."""
        return self._headcount.shortage

    def is_overdue(self, now: float) -> bool:
        """See `JobGroup`."""
        return self._headcount.is_overdue(now)

    def lose_spare(self) -> None:
        """Called when no process can be started that waits to be called."""
        self._headcount.lose_spare()

    def concluded(self, own: Outcome) -> Outcome:
        """See `JobGroup`."""
        if not own.status:
            self._keeping.end(was_reached=self._has_formed, say=self._hands.say)
        return own

    def can_spare(self, number: int) -> bool:
        """Whether enough ranks would be left without one of them, or a new one replaces it."""
        rank = self._ranks[number]
        return rank.only_sums or self._headcount.can_spare(rank)

    def end(self) -> None:
        """Called when the job is about to end: ranks that are told to end do so at once."""
        self._is_ending = True
        for rank in self._ranks.values():
            if rank.state == "ready":
                rank.quit(self._formations.generation)

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
            rank.state, rank.has_left = "gone", True
        elif kind == "done":
            rank.state = "done"
            if rank.is_new:
                rank.link.say("end")
        elif kind == "near":
            rank.state = "near"
            self._formations.ask_to_take_in()
        elif kind == "joined":
            rank.is_new = False
        elif kind == "saved":
            self._keeping.note(message["question"], message["why"])
        elif message["generation"] == self._formations.generation and rank.state in IN_GROUP:
            rank.state = kind  # "formed" or "settled"
        self._go_on()

    def _take_ready(self, rank: GroupRank, message: dict) -> None:
        if rank.only_sums:
            self._reducers.take_ready(rank, message)
            return
        if rank.has_left:
            rank.quit(self._formations.generation)  # nobody waits for it any more
            return
        rank.address = message["address"]
        rank.completed, rank.takes_in = message["completed"], message["takes_in"]
        rank.writes = message["writes"]
        rank.is_new |= rank.state == "starting" and self._has_formed
        restores = self._keeping.restores and not rank.is_new and not self._has_formed
        if rank.state == "starting" and (rank.is_new or restores):
            rank.state = "following"
            self._formations.set_apart(rank, restores=restores)
            return
        if rank.state in IN_GROUP and message["generation"] == self._formations.generation:
            self._formations.interrupt()
        rank.state = "ready"
        if self._is_ending:
            rank.quit(self._formations.generation)

    def _take_leaving(self, rank: GroupRank) -> None:
        rank.leaves = True
        if self._is_ending or rank.is_new or not self._headcount.suffices(rank, 0):
            rank.link.say("quit")
            return
        why = f"{rank.member.name} was asked to leave"
        self._headcount.note_loss(why, self._hands.say, waits=True)
        self._formations.change(why)
        if rank.state in IN_GROUP:
            self._formations.interrupt()

    def ended(self, number: int, status: int, how: str = "") -> bool:
        """See `JobGroup`."""
        rank = self._ranks[number]
        rank.has_ended = True
        was = rank.go()
        how = how or f"{rank.member.name} {ending(status)}"
        rank.link.release()
        if rank.only_sums:
            return self._reducer_ended(rank, was, status, how)
        if rank.is_spare:
            return self._spare_ended(rank, status)
        if rank.is_new:
            return self._new_one_ended(rank, status, how)
        enough = was in ("gone", "done") or self._headcount.suffices(rank, status)
        if was in IN_GROUP and not self._ranks.alive() and number < min(self._ranks.done() or [0]):
            enough = False  # it had files to write, which nobody else writes any more
        goes_on = status <= 0 and enough and not self._is_ending
        if was not in ("gone", "done") and status <= 0 and not self._is_ending:
            self._headcount.note_loss(how, self._hands.say, waits=goes_on)
        if goes_on and was not in ("gone", "done"):
            self._formations.change(how)
        if goes_on and was in IN_GROUP:
            self._formations.interrupt()
        self._go_on()
        return goes_on

    def _reducer_ended(self, reducer: GroupRank, was: str, status: int, how: str) -> bool:
        if status > 0 or self._is_ending:
            return False
        if self._ranks.alive():
            self._reducers.ended(reducer, was, how, self._hands.say)
            self._go_on()
        return True

    def _spare_ended(self, rank: GroupRank, status: int) -> bool:
        if self._ranks.alive() and not self._is_ending:
            self._headcount.lose_spare()
            how = f"{rank.member.name} {ending(status)} while it waited"
            self._hands.say(f"{how}; it is not replaced")
        return True

    def _new_one_ended(self, rank: GroupRank, status: int, how: str) -> bool:
        if not self._ranks.alive():
            return not self._is_ending  # the others are done
        goes_on = self._headcount.suffices(rank, status) and not self._is_ending
        why = f"{how} before it had joined the others"
        if goes_on:
            self._hands.say(why)
        elif not self._is_ending:
            self._headcount.note_loss(why, self._hands.say, waits=False)
        self._formations.ask_to_take_in()  # other new ones may have waited for this one
        if rank in self._formations.current:
            self._formations.interrupt()
        self._go_on()
        return goes_on

    def replaces(self, number: int, status: int) -> bool:
        """See `JobGroup`."""
        rank = self._ranks[number]
        return not rank.is_spare and self._headcount.replaces(rank, status)

    # --- groups -------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Does what is due, now that the state of a rank has changed."""
        alive = self._ranks.alive()
        if not alive:
            self._end_all()
        elif not self._is_ending:
            states = {rank.state for rank in self._formations.current}
            new = self._ranks.new()
            if all(rank.state == "ready" for rank in alive):
                if self._reducers.are_ready() and not any(rank.state in IN_GROUP for rank in new):
                    form_or_wait(self._ranks, self._headcount, self._formations)
            elif self._formations.have_formed:
                self._formations.note_formed()
            elif states == {"settled"}:
                self._formations.to_all("settled", "dissolved")

    def _kill(self, number: int) -> None:
        self._hands.kill(number)

    def _end_all(self) -> None:
        if not self._is_ending:
            self._formations.say_what_is_left()
        for number, rank in self._ranks.items():
            if rank.is_new or (rank.only_sums and rank.state == "starting"):
                self._kill(number)
            else:
                rank.link.say("end", generation=self._formations.generation)
