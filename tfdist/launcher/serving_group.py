"""The group of an elastic job on several machines, in the launcher to which the others come.

The messages between launchers, after the greeting of `tfdist.rendezvous`:

| from | message | meaning |
|---|---|---|
| serving | `wait` | there are as many ranks as there may be |
| serving | `refused` | why there is no place in the job; the last message |
| serving | `welcome`: `ranks`, `reducers` | the numbers of what the launcher starts now |
| serving | `start`: `number`, `process` | one more of a kind, in the place of a lost one |
| serving | `say`: `number`, `message` | for a rank; see `tfdist.elastic.link` |
| serving | `kill`: `number` | a rank is to be killed |
| serving | `end` | all ranks are to be ended |
| serving | `over`: `status`, `said` | how the job has ended; the last message |
| coming | `alive` | now and then |
| coming | `leaving` | the launcher was asked to end |
| coming | `rank`: `number`, `message` | what a rank or reducer says |
| coming | `ended`: `number`, `status` | it has ended |
| coming | `forgotten`: `number` | it could not be started |
| coming | `ask`: `after`, `offset` | what follows in the journal; see `JournalCopy` |
| serving | `read`: `machine`, and more | what another machine has asked for |
| coming | `found`: `machine`, `piece` | the answer |
| serving | `piece`: `source`, `piece` | the same, for the machine that has asked |
| serving | `written` | a rank of that machine writes the journal itself |
"""

from __future__ import annotations

import contextlib
import math
import selectors
import signal
import socket
import time

from tfdist.cluster.machines import Location
from tfdist.cluster.machines import Machine as Offer
from tfdist.launcher.distant import DistantLink, DistantMachine, Machine
from tfdist.launcher.elastic_limits import ElasticLimits
from tfdist.launcher.formations import Variables
from tfdist.launcher.group import Group
from tfdist.launcher.group_rank import GroupRank
from tfdist.launcher.hands import Hands
from tfdist.launcher.journals import Journals
from tfdist.launcher.keeping import Keeping
from tfdist.launcher.members import elastic_member, named
from tfdist.launcher.outcome import Outcome, too_few
from tfdist.launcher.rank import ending
from tfdist.rendezvous.channel import Channel, Message
from tfdist.rendezvous.inbox import Inbox
from tfdist.rendezvous.reception import Reception
from tfdist.rendezvous.terms import Terms

_GREETINGS = 64
_FAREWELL = 5.0  # seconds, until launchers that were told of the end have closed the connection
_PATIENCE = 60.0  # seconds, until ranks of other machines have ended that were told to
_SILENCE = 30.0  # seconds, after which a launcher is lost that is there but stopped
_MALFORMED = (ValueError, TypeError, KeyError, AttributeError)


class ServingGroup(Group):
    """The ranks of an elastic job on several machines.

    Args:
        listener: listens at the rendezvous.
        terms: what the launchers agree on.
        limits: as for `Group`.
        variables: as for `Group`.
        host: as for `Group`.
        location: as for `Group`.
        journal: as for `Group`.
        keeping: as for `Group`.
    """

    def __init__(
        self,
        listener: socket.socket,
        terms: Terms,
        limits: ElasticLimits,
        variables: Variables,
        host: str,
        location: Location,
        journal: str,
        keeping: Keeping,
    ):
        super().__init__(limits, variables, host, location, journal, keeping)
        self._terms = terms
        self._host = host
        self._inbox = Inbox()
        self._reception = Reception(listener, terms.secret, _GREETINGS, self._inbox.put)
        self._machines: dict[Channel, DistantMachine] = {}
        self._waiting: dict[Channel, Message] = {}
        self._journals = Journals(self._ranks, journal, self._machine)
        self._met = location.machine  # the highest number of a machine
        self._is_over_at = math.inf
        self._farewell = _FAREWELL
        self._is_losing = False
        self._looked = time.monotonic()

    def open(self, selector: selectors.BaseSelector, hands: Hands) -> None:
        """See `JobGroup`."""
        super().open(selector, hands)
        selector.register(self._inbox, selectors.EVENT_READ, self)

    def unwatch(self) -> None:
        """See `JobGroup`."""
        self._selector.unregister(self._inbox)

    def read(self) -> bool:
        """Takes what other launchers have said. Returns True, as others may come."""
        for channel, message in self._inbox.taken():
            try:
                self._receive(channel, message)
            except _MALFORMED as error:
                if channel in self._machines:
                    host = self._machines[channel].host
                    self._hands.say(f"what {host} says cannot be used: {error!r}")
                channel.close()
        return True

    def _receive(self, channel: Channel, message: Message | None) -> None:
        machine = self._machines.get(channel)
        if message is None:
            self._waiting.pop(channel, None)
            if machine is not None:
                del self._machines[channel]
                self._lose(machine)
        elif machine is None:
            self._greet(channel, message)
        else:
            machine.seen = time.monotonic()
            self._receive_from(machine, message)

    def _receive_from(self, machine: DistantMachine, message: Message) -> None:
        if message["kind"] == "rank":
            self._take(message["number"], message["message"])
        elif message["kind"] == "ended":
            self._distant_ended(machine, message["number"], message["status"])
        elif message["kind"] == "forgotten":
            self.forget(message["number"])
        elif message["kind"] == "leaving":
            machine.leaves = True
        elif message["kind"] == "ask":
            self._journals.answer(machine, message["after"], message["offset"])
        elif message["kind"] == "found":
            self._journals.pass_on(machine, message["machine"], message["piece"])

    def _greet(self, channel: Channel, greeting: Message) -> None:
        there = greeting["machine"]["host"]
        refusal = self._terms.refusal(self._host, greeting["terms"], there)
        if self._is_ending or (self._has_formed and not self._ranks.alive()):
            refusal = "the job at this rendezvous is about to end"
        if refusal:
            _answer(channel, {"refused": refusal})
            channel.close()
        elif Offer(**greeting["machine"]).ranks and self._headcount.room < 1:
            self._waiting[channel] = greeting
            _answer(channel, {"kind": "wait"})
            self._hands.say(f"{there} has come, and waits for a place (--max)")
        else:
            self._admit(channel, greeting)

    def _admit(self, channel: Channel, greeting: Message) -> None:
        self._met += 1
        offer = Offer(**greeting["machine"])
        machine = DistantMachine(offer.host, Location(self._met, offer.interface), channel)
        self._machines[channel] = machine
        count = min(offer.ranks, int(self._headcount.room))
        ranks = [self._connect(machine, "rank") for _ in range(count)]
        reducers = [self._connect(machine, "reducer") for _ in range(offer.reducers)]
        machine.send("welcome", ranks=ranks, reducers=reducers)
        come = named([self._ranks[number].member for number in (*ranks, *reducers)])
        self._hands.say(f"{machine.host} has come with {come}")

    def _connect(self, machine: DistantMachine, kind: str) -> int:
        """Makes a rank or reducer of another machine. Returns its number."""
        number = self.next_number
        member = elastic_member(kind, number)
        self._ranks[number] = GroupRank(
            member, DistantLink(machine, number), machine.location, is_new=self._is_new(member)
        )
        return number

    def _admit_waiting(self) -> None:
        for channel, greeting in list(self._waiting.items()):
            if not self._is_ending and self._headcount.room >= 1:
                del self._waiting[channel]
                self._admit(channel, greeting)

    def _machine(self, number: int) -> Machine | None:
        """The machine with a number; None for this one."""
        machines = self._machines.values()
        return next((one for one in machines if one.location.machine == number), None)

    def _kill(self, number: int) -> None:
        machine = self._machine(self._ranks[number].location.machine)
        if machine is None:
            super()._kill(number)
        else:
            machine.send("kill", number=number)

    def _distant_ended(self, machine: DistantMachine, number: int, status: int) -> None:
        rank = self._ranks[number]
        if rank.has_ended:
            return
        how = ""
        if machine.leaves and status:  # whatever its own handlers of signals make of it
            how = f"{rank.member.name} {ending(status)}, as its launcher was asked to end"
            status = -signal.SIGKILL
        if self.ended(number, status, how):
            if status and not machine.leaves and self.replaces(number, status):
                new = self._connect(machine, rank.member.kind)
                machine.send("start", number=new, process=rank.member.kind)
                name = self._ranks[new].member.name
                self._hands.say(f"{name} is started in the place of {rank.member.name}")
        elif self.shortage:
            self._hands.end(too_few(self.shortage), 0.0)
        elif status:
            how = f"on {machine.host}, {rank.member.name} {ending(status)}"
            code = status if status > 0 else 128 - status
            everywhere = "the ranks of all machines were ended"
            self._hands.end(Outcome(code, f"{how}; {everywhere}"), rank.member.role.settle)

    def _lose(self, machine: DistantMachine) -> None:
        """Called when the launcher of a machine is gone."""
        there = [rank for rank in self._ranks.values() if rank.location == machine.location]
        lost = [rank for rank in there if not rank.has_ended]
        self._is_losing = True  # no group is formed with those that are not counted out yet
        why = f"was lost, as its launcher on {machine.host} is gone"
        needed = [
            rank.member.name
            for rank in lost
            if not self.ended(rank.member.number, -signal.SIGKILL, f"{rank.member.name} {why}")
        ]
        self._is_losing = False
        self._go_on()
        if lost and self.shortage:
            self._hands.end(too_few(self.shortage), 0.0)
        elif needed:  # nobody else writes its files
            self._hands.end(Outcome(128 + signal.SIGKILL, f"{needed[0]} {why}"), 0.0)

    def _go_on(self) -> None:
        if not self._is_losing:
            super()._go_on()

    # --- the job --------------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """See `JobGroup`."""
        self._journals.look(now)
        self._admit_waiting()
        was_stopped = now - self._looked > _SILENCE / 2  # this launcher itself
        self._looked = now
        for machine in list(self._machines.values()):
            if was_stopped:
                machine.seen = now
            elif now - machine.seen > _SILENCE:
                self._hands.say(f"the launcher on {machine.host} is silent for {_SILENCE:g} s")
                machine.channel.close()
                machine.seen = now

    @property
    def pause(self) -> float:
        """See `JobGroup`."""
        return self._journals.pause

    @property
    def awaits_others(self) -> bool:
        """See `JobGroup`."""
        machines = {machine.location for machine in self._machines.values()}
        runs = any(not r.has_ended and r.location in machines for r in self._ranks.values())
        return runs and time.monotonic() < self._is_over_at

    def end_others(self, decided: Outcome | None) -> None:
        """See `JobGroup`."""
        if self._is_over_at == math.inf:
            self._is_over_at = time.monotonic() + _PATIENCE
            for machine in self._machines.values():
                machine.send("end")

    def hurry(self) -> None:
        """See `JobGroup`."""
        self._is_over_at, self._farewell = 0.0, 0.5

    def concluded(self, own: Outcome) -> Outcome:
        """See `JobGroup`."""
        self._reception.close()
        for machine in self._machines.values():
            machine.send("over", status=own.status, said=own.message)
        for channel in self._waiting:
            _answer(channel, {"kind": "over", "status": own.status, "said": own.message})
        # Whoever closes a connection with something unread may take back what was sent before.
        self._inbox.wait_for_end([*self._machines, *self._waiting], self._farewell)
        return super().concluded(own)


def _answer(channel: Channel, message: Message) -> None:
    """Answers a launcher that has no place in the job, and may be gone already."""
    with contextlib.suppress(OSError):
        channel.send(message)
