"""Other machines of an elastic job, and their ranks, as the launcher sees them that serves."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Protocol

from tfdist.cluster.machines import Location
from tfdist.rendezvous.channel import Channel


class Machine(Protocol):
    """A machine with ranks."""

    @property
    def location(self) -> Location:
        """Where its ranks are."""

    def send(self, kind: str, **details: object) -> None:
        """Tells its launcher something."""


@dataclasses.dataclass(frozen=True)
class DistantMachine:
    """A machine whose launcher has come to the rendezvous.

    Attributes:
        host: its address.
        location: where its ranks are.
        channel: the connection to its launcher.
    """

    host: str
    location: Location
    channel: Channel

    def send(self, kind: str, **details: object) -> None:
        """Tells its launcher something. If it is gone, the thread that receives notes that."""
        with contextlib.suppress(OSError):
            self.channel.send({"kind": kind, **details})


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
