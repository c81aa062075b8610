"""How a launcher comes to the rendezvous, or serves it."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator

from tfdist.cluster.addresses import is_local, split_address
from tfdist.rendezvous.channel import Channel, Message, NotAuthenticatedError
from tfdist.rendezvous.terms import Terms

_PAUSE = 0.2  # seconds between two attempts to reach the rendezvous
_ATTEMPT = 5.0  # seconds for one of them


class RefusedError(Exception):
    """The job cannot begin."""


def listener_at(address: str) -> socket.socket | None:
    """Listens at the rendezvous, if it is this launcher's task to serve it.

    Args:
        address: "host:port" of the rendezvous.

    Raises:
        OSError: when the name is not known, or when one cannot listen there.
        ValueError: when the address is none.
    """
    host, port = split_address(address)
    if not is_local(host):
        return None
    family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server(place[:2], family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # another launcher of this machine serves
            return None
        raise


@contextlib.contextmanager
def connected(terms: Terms) -> Iterator[Channel]:
    """A connection to the launcher that serves. Waits for that launcher.

    Args:
        terms: what the launchers agree on.

    Raises:
        RefusedError: when it has another secret.
        OSError: when it cannot be reached.
    """
    host, port = split_address(terms.address)
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


def answer(channel: Channel, terms: Terms) -> Message:
    """What the launcher that serves says. Waits for it.

    Raises:
        RefusedError: when there is no job, or that launcher has ended.
    """
    try:
        told = channel.receive()
    except (OSError, NotAuthenticatedError, ValueError) as error:
        raise RefusedError(
            f"The launcher that serves the rendezvous {terms.address} has ended. Received: {error}"
        ) from error
    if "refused" in told:
        raise RefusedError(told["refused"])
    return told
