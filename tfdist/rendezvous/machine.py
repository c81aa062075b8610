"""One launcher's side of a rendezvous."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfdist.cluster.addresses import is_local, reserved_ports, split_address
from tfdist.cluster.machines import Machine, interface_of
from tfdist.cluster.places import gpus
from tfdist.rendezvous.channel import Channel, NotAuthenticatedError
from tfdist.rendezvous.end import End
from tfdist.rendezvous.server import Server
from tfdist.strategies.backend import Environments

_PAUSE = 0.2  # seconds between two attempts to reach the rendezvous


@dataclasses.dataclass(frozen=True)
class Terms:
    """What the launchers agree on.

    Attributes:
        address: "host:port" of the rendezvous.
        secret: what all launchers know.
        machines: how many launchers there are.
        patience: seconds to wait for them.
        alike: what all of them must have been given alike, by names for messages.
        across: makes the variables of all ranks; see `tfdist.strategies.backend.Launch`.
    """

    address: str
    secret: bytes = dataclasses.field(repr=False)
    machines: int
    patience: float
    alike: Mapping[str, Any]
    across: Callable[[Sequence[Machine]], Environments]


class RefusedError(Exception):
    """The job cannot begin."""


class Group:
    """The launchers of a job, from the view of one of them, once all have come.

    Args:
        channel: the connection to the server.
        told: what the server has said of this machine's ranks.

    Attributes:
        first: the first rank of this machine.
        ranks: the number of ranks on all machines.
        variables: the environment variables of this machine's ranks.
        host: the address of this machine.
    """

    def __init__(self, channel: Channel, told: Mapping[str, Any]):
        self._channel = channel
        self.first: int = told["first"]
        self.ranks: int = told["ranks"]
        self.variables: list[dict[str, str]] = told["variables"]
        self.host = channel.own_host

    def fileno(self) -> int:
        """The descriptor; it can be read once another machine has failed."""
        return self._channel.fileno()

    def failure(self) -> End:
        """How another machine has failed. Waits for it."""
        return self._received("failed", "end")

    def conclude(self, own: End) -> End:
        """Tells the others how this machine's ranks have ended, and waits for the others.

        Returns:
            The failure that has ended the job, on whichever machine; status 0 for none.
        """
        with contextlib.suppress(OSError):
            self._channel.send(dataclasses.asdict(own))
        return self._received("end")

    def _received(self, *wanted: str) -> End:
        try:
            while True:
                for what, end in self._channel.receive().items():
                    if what in wanted:
                        return End(**end)
        except (OSError, ValueError, NotAuthenticatedError) as error:
            return End(1, f"the launcher that serves the rendezvous is gone: {error}")


@contextlib.contextmanager
def meet(terms: Terms, processes: int) -> Iterator[Group]:
    """Waits for the other launchers. Keep it open until the job has ended everywhere.

    Args:
        terms: what the launchers agree on.
        processes: the number of ranks of this machine.

    Raises:
        RefusedError: in one line, when the launchers are too few or were given other things, or
            one has another secret.
        OSError: when the rendezvous cannot be reached, or when there are too few free ports.
        ValueError: when the address is none.
    """
    host, port = split_address(terms.address)
    end = time.monotonic() + terms.patience
    server = _serve(host, port, terms)
    try:
        with _connected(host, port, end, terms) as channel, reserved_ports(processes) as ports:
            own = channel.own_host
            machine = Machine(own, interface_of(own), tuple(ports), tuple(gpus(os.environ)))
            joining = {"machine": dataclasses.asdict(machine), "terms": dict(terms.alike)}
            channel.send({**joining, "serves": server is not None})
            told = _answer(channel, terms)
            if "refused" in told:
                raise RefusedError(told["refused"])
            yield Group(channel, told)
    finally:
        if server is not None:
            server.join()


def _serve(host: str, port: int, terms: Terms) -> Server | None:
    """The server, if it is this launcher's task to serve."""
    if not is_local(host):
        return None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # another launcher of this machine serves
            return None
        raise
    return Server(listener, terms.secret, terms.machines, terms.patience, terms.across)


@contextlib.contextmanager
def _connected(host: str, port: int, end: float, terms: Terms) -> Iterator[Channel]:
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=_PAUSE * 10)
            break
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(
                    f"Nobody serves the rendezvous {terms.address} (for {terms.patience:g} s). "
                    "Start the same command on the machine that has this address, and look for a "
                    f"firewall between the machines. Received: {error}"
                ) from error
        time.sleep(_PAUSE)
    try:
        channel = Channel(connection, terms.secret, serves=False)
    except (OSError, NotAuthenticatedError) as error:
        connection.close()
        raise RefusedError(
            f"The rendezvous {terms.address} has another secret, or it is no launcher of tfdist, "
            f"or its job has begun already. Received: {error}"
        ) from error
    try:
        yield channel
    finally:
        channel.close()


def _answer(channel: Channel, terms: Terms) -> dict[str, Any]:
    try:
        return channel.receive()
    except (OSError, NotAuthenticatedError) as error:
        raise RefusedError(
            f"The launcher that serves the rendezvous {terms.address} has ended. Received: {error}"
        ) from error
