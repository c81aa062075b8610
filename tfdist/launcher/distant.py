"""Other machines of an elastic job, and their ranks, as the launcher sees them that serves."""

from __future__ import annotations

import dataclasses
import time
from typing import Protocol

from tfdist.cluster.machines import Location
from tfdist.rendezvous.channel import Channel
from tfdist.rendezvous.outbox import Outbox


class Machine(Protocol):
    """A machine with ranks."""

    @property
    def location(self) -> Location:
        """Where its ranks are."""

    def send(self, kind: str, **details: object) -> None:
        """Tells its launcher something."""


class DistantMachine:
    """A machine whose launcher has come to the rendezvous.

    Args:
        host: its address.
        location: where its ranks are.
        channel: the connection to its launcher.

    Attributes:
        host: as above.
        location: as above.
        channel: as above.
        seen: when its launcher has said something last.
        leaves: whether its launcher has been asked to end.
    """

    def __init__(self, host: str, location: Location, channel: Channel):
        self.host = host
        self.location = location
        self.channel = channel
        self.seen = time.monotonic()
        self.leaves = False
        self._outbox = Outbox(channel)

    def send(self, kind: str, **details: object) -> None:
        """Tells its launcher something."""
        self._outbox.put({"kind": kind, **details})


@dataclasses.dataclass(frozen=True)
class DistantLink:
    """The connection to a rank of another machine, through the launcher there.

    Attributes:
        machine: the machine.
        number: the rank.
    """

    machine: DistantMachine
    number: int

    def say(self, kind: str, **details: object) -> None:
        """Sends a message."""
        self.machine.send("say", number=self.number, message={"kind": kind, **details})

    def release(self) -> None:
        """Nothing: the launcher there has the rank's end."""
