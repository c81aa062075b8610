"""One launcher's side of a rendezvous."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from tfdist.cluster.addresses import is_local, reserved_ports, split_address
from tfdist.cluster.machines import Machine, interface_of
from tfdist.cluster.places import gpus
from tfdist.rendezvous.channel import Channel, NotAuthenticatedError
from tfdist.rendezvous.end import End
from tfdist.rendezvous.server import Server
from tfdist.rendezvous.terms import Terms

_PAUSE = 0.2  # seconds between two attempts to reach the rendezvous
_ATTEMPT = 5.0  # seconds for one of them


class RefusedError(Exception):
    """The job cannot begin."""


class Meeting:
    """The launchers of a job, from the view of one of them, once all have come.

    Args:
        channel: the connection to the server.
        told: what the server has said of this machine's ranks.

    Attributes:
        first: the first rank of this machine.
        ranks: the number of ranks on all machines.
        variables: the environment variables of this machine's ranks.
        host: the address of this machine.
        said: what this launcher has said last of its own end; None for nothing.
    """

    def __init__(self, channel: Channel, told: Mapping[str, Any]):
        self._channel = channel
        self.first: int = told["first"]
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
def meet(terms: Terms, processes: int) -> Iterator[Meeting]:
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
    server = _serve(host, port, terms)
    what = "Serving" if server is not None else "Looking for"
    terms.say(
        f"{what} the rendezvous {terms.address} for {terms.machines} machines, for at most "
        f"{terms.patience:g} s"
    )
    end = End(1, "its launcher has ended")
    try:
        with _connected(host, port, terms) as channel, reserved_ports(processes) as ports:
            own = channel.own_host
            machine = Machine(own, interface_of(own), tuple(ports), tuple(gpus(os.environ)))
            joining = {"machine": dataclasses.asdict(machine), "serves": server is not None}
            channel.send({**joining, "terms": dict(terms.same_everywhere)})
            meeting = Meeting(channel, _answer(channel, terms))
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


def _serve(host: str, port: int, terms: Terms) -> Server | None:
    """The server, if it is this launcher's task to serve."""
    if not is_local(host):
        return None
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        listener = socket.create_server(address[:2], family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # another launcher of this machine serves
            return None
        raise
    return Server(listener, terms)


@contextlib.contextmanager
def _connected(host: str, port: int, terms: Terms) -> Iterator[Channel]:
    end = time.monotonic() + terms.patience
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=_ATTEMPT)
            channel = _greeted(connection, terms)
            break
        except (OSError, UnicodeError) as error:
            if time.monotonic() > end:
                raise OSError(
                    f"Nobody serves the rendezvous {terms.address} (for {terms.patience:g} s). "
                    "Start the same command on the machine that has this address. Look for a "
                    "firewall between the machines, and for another program at this port. "
                    f"Received: {error}"
                ) from error
        time.sleep(_PAUSE)
    try:
        yield channel
    finally:
        channel.close()


def _greeted(connection: socket.socket, terms: Terms) -> Channel:
    try:
        return Channel(connection, terms.secret, serves=False)
    except NotAuthenticatedError as error:
        connection.close()
        raise RefusedError(
            f"The rendezvous {terms.address} has another secret, or it is no launcher of this "
            f"version of tfdist. Received: {error}"
        ) from error
    except OSError:
        connection.close()
        raise


def _answer(channel: Channel, terms: Terms) -> dict[str, Any]:
    try:
        told = channel.receive()
    except (OSError, NotAuthenticatedError, ValueError) as error:
        raise RefusedError(
            f"The launcher that serves the rendezvous {terms.address} has ended. Received: {error}"
        ) from error
    if "refused" in told:
        raise RefusedError(told["refused"])
    return told
