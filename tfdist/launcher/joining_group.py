"""The group of an elastic job in a launcher that has come to the one that serves.

For the messages see `tfdist.launcher.serving_group`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import selectors
import signal
import time
from typing import NamedTuple

from tfdist.cluster.machines import Machine, interface_of
from tfdist.environment import BACKUP_DIR, ELASTIC, ELASTIC_HOST, JOURNAL
from tfdist.launcher.hands import Hands
from tfdist.launcher.job_group import JobGroup
from tfdist.launcher.journal_copy import JournalCopy
from tfdist.launcher.keeping import Keeping
from tfdist.launcher.link import Link
from tfdist.launcher.members import Member
from tfdist.launcher.outcome import TOO_FEW, Outcome
from tfdist.rendezvous.channel import Channel, Message
from tfdist.rendezvous.inbox import Inbox
from tfdist.rendezvous.reaching import answer
from tfdist.rendezvous.terms import Terms

_TOLD_TO_WAIT = "there are as many ranks as there may be (--max); waiting for a place"
_SIGNS = 2.0  # seconds between two signs of life
_PATIENCE = 90.0  # seconds, until the job has ended everywhere
_GONE = (
    "the launcher that serves the rendezvous is gone, so the ranks of this machine were ended; "
    "start the job again: with BackupAndRestore it goes on from the last backup"
)


class JoiningGroup(JobGroup):
    """What a launcher knows of a group about which another launcher decides.

    Args:
        channel: the connection to that launcher.
        journal: the path of the journal on this machine.
        keeping: where the state is kept, if a rank of this machine is the first one.
    """

    def __init__(self, channel: Channel, journal: str, keeping: Keeping):
        self._channel = channel
        self._common = {ELASTIC_HOST: channel.own_host, JOURNAL: journal}
        if keeping.folder:
            self._common[BACKUP_DIR] = keeping.folder
        self._copy = JournalCopy(journal, lambda a, o: self._send("ask", after=a, offset=o))
        self._inbox = Inbox()
        self._links: dict[int, Link] = {}
        self._follow: set[int] = set()  # ranks that have not joined the others, as far as is known
        self._joined: set[int] = set()  # those that have, one of which writes the journal
        self._told: Outcome | None = None
        self._is_ending = False
        self._gives_up_at = math.inf
        self._next_sign = 0.0

    def _send(self, kind: str, **details: object) -> None:
        with contextlib.suppress(OSError):  # the thread that receives notes it
            self._channel.send({"kind": kind, **details})

    # --- the job --------------------------------------------------------------------------------

    def open(self, selector: selectors.BaseSelector, hands: Hands) -> None:
        """See `JobGroup`."""
        self._selector, self._hands = selector, hands
        self._inbox.listen(self._channel)
        selector.register(self._inbox, selectors.EVENT_READ, self)

    def unwatch(self) -> None:
        """See `JobGroup`."""
        self._selector.unregister(self._inbox)

    def connect(
        self, member: Member, *, is_spare: bool = False
    ) -> tuple[dict[str, str], tuple[int, ...]]:
        """See `JobGroup`."""
        link = Link(functools.partial(self._pass_on, member.number))
        self._links[member.number] = link
        self._selector.register(link.fd, selectors.EVENT_READ, link)
        descriptor = link.other.fileno()
        return {ELASTIC: f"{descriptor}:{member.number}", **self._common}, (descriptor,)

    def _pass_on(self, number: int, message: Message) -> None:
        if message["kind"] == "joined":
            self._follow.discard(number)
            self._joined.add(number)
        self._send("rank", number=number, message=message)

    def ended(self, number: int, status: int, how: str = "") -> bool:
        """See `JobGroup`. The launcher that serves decides; until it does, the job goes on."""
        self._release(number)
        self._send("ended", number=number, status=status)
        return True

    def forget(self, number: int) -> None:
        """See `JobGroup`."""
        self._release(number)
        self._send("forgotten", number=number)

    def _release(self, number: int) -> None:
        self._follow.discard(number)
        self._joined.discard(number)
        if number in self._links:
            self._links[number].release()

    def can_spare(self, number: int) -> bool:
        """See `JobGroup`."""
        return True

    def passed_on(self, number: signal.Signals) -> signal.Signals:
        """See `JobGroup`. Ranks leave the others: Ctrl-C here does not end the job elsewhere."""
        return signal.SIGTERM

    def hurry(self) -> None:
        """See `JobGroup`."""
        self._gives_up_at = 0.0

    def end(self) -> None:
        """See `JobGroup`."""
        if self._gives_up_at == math.inf:
            self._send("leaving")
        self._is_ending = True

    @property
    def awaits_others(self) -> bool:
        """See `JobGroup`. A launcher that was asked to end waits for nobody."""
        waits = not self._is_ending or self._gives_up_at < math.inf
        return self._told is None and waits and time.monotonic() < self._gives_up_at

    def look(self, now: float) -> None:
        """See `JobGroup`."""
        if now >= self._next_sign:
            self._next_sign = now + _SIGNS
            self._send("alive")
        if self._follow:
            self._copy.look(now)

    @property
    def pause(self) -> float:
        """See `JobGroup`."""
        return self._copy.pause if self._follow else math.inf

    def concluded(self, own: Outcome) -> Outcome:
        """See `JobGroup`."""
        self._channel.close()
        return self._told or own

    # --- what the launcher says that serves -----------------------------------------------------

    def read(self) -> bool:
        """Takes what it has said. Returns True, as it is unregistered elsewhere."""
        for _, message in self._inbox.taken():
            if message is None:
                for link in self._links.values():
                    link.say("quit")  # nobody else tells them to go on, or to end
                self._take_end(Outcome(TOO_FEW, _GONE))
            else:
                self._receive(message)
        return True

    def _receive(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "say":
            self._say(message["number"], message["message"])
        elif kind == "start" and self._is_ending:
            self._send("forgotten", number=message["number"])
        elif kind == "start":
            self._hands.start(message["number"], message["process"])
        elif kind == "kill":
            self._hands.kill(message["number"])
        elif kind == "end":
            self._gives_up_at = time.monotonic() + _PATIENCE
            self._hands.end(Outcome(1, "the job was ended, with the ranks of all machines"), 0.0)
        elif kind == "over":
            self._take_end(Outcome(message["status"], message["said"]))
        elif kind == "read":
            number = message.pop("machine")
            del message["kind"]
            self._send("found", machine=number, piece=self._copy.piece(**message))
        elif kind == "piece" and not self._joined:  # or else the answer comes too late
            self._copy.take(message["source"], message["piece"], time.monotonic())
        elif kind == "written":
            self._copy.is_written(time.monotonic())

    def _say(self, number: int, message: Message) -> None:
        if message["kind"] == "form" and message["formation"]["is_apart"]:
            self._follow.add(number)
        self._links[number].say(**message)

    def _take_end(self, outcome: Outcome) -> None:
        if self._told is None and not (self._is_ending and self._gives_up_at == math.inf):
            self._told = outcome
            self._hands.end(outcome, 0.0)


class OverError(Exception):
    """The job has ended while this launcher waited for a place.

    Args:
        outcome: that of the job.

    Attributes:
        outcome: as above.
    """

    def __init__(self, outcome: Outcome):
        super().__init__(outcome.message)
        self.outcome = outcome


class Welcome(NamedTuple):
    """What the launcher that serves has given to this one.

    Attributes:
        ranks: the numbers of this machine's ranks, rising.
        reducers: the numbers of its reducers, rising.
    """

    ranks: list[int]
    reducers: list[int]


def welcomed(channel: Channel, terms: Terms, count: int, reducers: int) -> Welcome:
    """Asks the launcher that serves for a place. Waits until there is one.

    Args:
        channel: the connection to that launcher.
        terms: what the launchers agree on.
        count: the number of ranks of this machine.
        reducers: the number of its reducers.

    Returns:
        The numbers of the processes; fewer ranks if there is no place for all.

    Raises:
        RefusedError: in one line, when there is no place in the job.
        OverError: when the job has ended.
    """
    ports = (0,) * (count + reducers)
    machine = Machine(channel.own_host, interface_of(channel.own_host), ports, (), reducers)
    greeting = {"machine": dataclasses.asdict(machine), "serves": False}
    channel.send({**greeting, "terms": dict(terms.same_everywhere)})
    while (told := answer(channel, terms))["kind"] == "wait":
        terms.say(_TOLD_TO_WAIT)
    if told["kind"] != "welcome":
        raise OverError(Outcome(told["status"], told["said"]))
    welcome = Welcome(told["ranks"], told["reducers"])
    if len(welcome.ranks) < count:
        terms.say(f"there is a place for {len(welcome.ranks)} of {count} processes (--max)")
    return welcome
