"""Lets the system notice that another machine of a job has vanished.

A machine that loses its power or its network closes no connection. gRPC, as TensorFlow uses it,
waits for its answer for ever. The system does not: asked to (TCP keepalive, and TCP_USER_TIMEOUT of
RFC 5482), it ends a connection whose other side has been silent for half a minute. A process that
is busy or stopped is not silent: its system answers for it. Then gRPC reports the same error as for
a process that was killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Collection, Iterable

from tfdist.cluster import sockets
from tfdist.cluster.addresses import split_address

# An idle connection is asked after 10 seconds, 4 times, 5 s apart.
_IDLE, _PAUSE, _TIMES = 10, 5, 4
_OPTIONS = {
    "TCP_KEEPIDLE": _IDLE,
    "TCP_KEEPINTVL": _PAUSE,
    "TCP_KEEPCNT": _TIMES,
    # In milliseconds; for what was sent and is not confirmed. The system alone tries for 15 minutes.
    "TCP_USER_TIMEOUT": 1000 * (_IDLE + _PAUSE * _TIMES),
}
# Seconds until a new connection is found.
_LOOK = 1.0
_TCP = (socket.AF_INET, socket.AF_INET6)

_ports: set[int] = set()
_starting = threading.Lock()


def ask(connection: socket.socket) -> None:
    """Lets the system end a connection whose other side is silent for half a minute.

    Args:
        connection: a connection over TCP.

    Raises:
        OSError: when it is none, or has ended.

    Example:

    >>> import socket
    >>> from tfdist.cluster.vanishing import ask
    >>> with socket.socket() as one:
    ...     ask(one)
    ...     one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    1
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS.items():
        if hasattr(socket, name):  # not everywhere
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def watch(addresses: Iterable[str]) -> None:
    """From now on, all connections of this process to and from a job's servers are asked.

    A thread looks for them, as nobody is told of the connections that gRPC makes. Where a process
    cannot list its connections, which it can on Linux, nothing happens.

    Args:
        addresses: "host:port" of the servers of the job.

    Example:

    >>> from tfdist.cluster.vanishing import watch
    >>> watch(["localhost:2222"])
    """
    if not os.path.isdir(sockets.DESCRIPTORS):
        return
    with _starting:
        is_first = not _ports
        _ports.update(split_address(address)[1] for address in addresses)
        if is_first and _ports:
            threading.Thread(target=_watch, name="tfdist-vanishing", daemon=True).start()


def _watch() -> None:
    asked: set[str] = set()
    while True:
        found = sockets.opened()
        asked &= set(found.values())
        for descriptor, name in found.items():
            if name not in asked:
                with contextlib.suppress(OSError):  # it has ended
                    if _ask_if_known(descriptor, frozenset(_ports)):
                        asked.add(name)
        time.sleep(_LOOK)


def _ask_if_known(descriptor: int, ports: Collection[int]) -> bool:
    """Asks a connection to or from one of these ports; whether it need not be looked at again."""
    with sockets.borrowed(descriptor) as one:
        facts = (socket.SO_DOMAIN, socket.SO_TYPE, socket.SO_ACCEPTCONN)
        family, kind, listens = (one.getsockopt(socket.SOL_SOCKET, fact) for fact in facts)
        if family not in _TCP or kind != socket.SOCK_STREAM or listens:
            return True
        own, other = one.getsockname()[1], one.getpeername()[1]  # raises before it is connected
        if own in ports or other in ports:
            ask(one)
        return True
