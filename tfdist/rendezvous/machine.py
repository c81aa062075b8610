"""One launcher's side of a rendezvous."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from tfdist.cluster.addresses import reserved_ports
from tfdist.cluster.machines import Machine, interface_of
from tfdist.cluster.places import gpus
from tfdist.rendezvous.channel import Channel, Message, NotAuthenticatedError
from tfdist.rendezvous.end import End
from tfdist.rendezvous.reaching import answer, connected, listener_at
from tfdist.rendezvous.server import Server
from tfdist.rendezvous.terms import FixedTerms


class Meeting:
    """The launchers of a job, from the view of one of them, once all have come.

    Args:
        channel: the connection to the server.
        told: what the server has said of this machine's ranks.

    Attributes:
        first: the first rank of this machine.
        first_reducer: the first reducer of this machine.
        ranks: the number of ranks on all machines.
        variables: the environment variables of this machine's ranks, and then of its reducers.
        host: the address of this machine.
        said: what this launcher has said last of its own end; None for nothing.
    """

    def __init__(self, channel: Channel, told: Message):
        self._channel = channel
        self.first: int = told["first"]
        self.first_reducer: int = told["first_reducer"]
        self.ranks: int = told["ranks"]
        self.variables: list[dict[str, str]] = told["variables"]
        self.host = channel.own_host
        self.said: End | None = None

    def fileno(self) -> int:
        """The descriptor; it can be read when there is something to be told."""
        return self._channel.fileno()

    def say(self, end: End) -> None:
        """Tells the others how this machine's ranks have ended, or that it was interrupted."""
        self.said = end
        with contextlib.suppress(OSError):  # then nobody serves any more, which `told` tells
            self._channel.send(dataclasses.asdict(end))

    def told(self) -> tuple[End, bool]:
        """How another machine has failed, or the job has ended. Waits for either.

        Returns:
            The end, and whether the job has ended.
        """
        try:
            message = self._channel.receive()
            return End(**message.get("end", message.get("failed"))), "end" in message
        except (OSError, NotAuthenticatedError, ValueError, TypeError, AttributeError):
            return End(1, "the launcher that serves the rendezvous is gone"), True


@contextlib.contextmanager
def meet(terms: FixedTerms, count: int, reducers: int = 0) -> Iterator[Meeting]:
    """Waits for the other launchers. Keep it open until the job has ended everywhere.

    Args:
        terms: what the launchers agree on.
        count: the number of ranks of this machine.
        reducers: the number of its reducers.

    Raises:
        RefusedError: in one line, when the launchers are too few or were given other things, or
            one has another secret.
        OSError: when the rendezvous cannot be reached, or when there are too few free ports.
        ValueError: when the address is none.
    """
    listener = listener_at(terms.address)
    server = None if listener is None else Server(listener, terms)
    what = "Serving" if server is not None else "Looking for"
    terms.say(
        f"{what} the rendezvous {terms.address} for {terms.machines} machines, for at most "
        f"{terms.patience:g} s"
    )
    end = End(1, "its launcher has ended")
    try:
        with connected(terms) as channel, reserved_ports(count + reducers) as ports:
            own = channel.own_host
            place, devices = interface_of(own), tuple(gpus(os.environ))
            machine = Machine(own, place, tuple(ports), devices, reducers)
            joining = {"machine": dataclasses.asdict(machine), "serves": server is not None}
            channel.send({**joining, "terms": dict(terms.same_everywhere)})
            meeting = Meeting(channel, answer(channel, terms))
            try:
                yield meeting
            except (OSError, ImportError) as error:
                meeting.say(End(2, str(error)))
                raise
            finally:
                end = meeting.said or end
    finally:
        if server is not None:
            server.stop(end)
