"""Notices that another machine of a job has vanished.

A machine that loses its power or its network closes no connection. gRPC, as TensorFlow uses it,
waits for its answer for ever. So the system is asked to look after idle connections (by TCP
keepalive), and a thread looks after those with data that nobody confirms, for which the system
would try for a quarter of an hour. A connection is ended when its other side is silent for half a
minute. Then gRPC reports the same error as for a process that was killed.

A process that is busy or stopped is not silent: its system answers for it. That is why the option
TCP_USER_TIMEOUT (RFC 5482) is not used: it also ends connections to a process that reads nothing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Collection, Iterable

from tfdist.cluster import sockets
from tfdist.cluster.addresses import split_address

# An idle connection is asked after 10 seconds, 4 times, 5 s apart.
_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
# Seconds without any answer to data.
_SILENT = 30.0
# The beginning of Linux' `struct tcp_info`, and what is used of it: how often the oldest data were
# sent again, and the milliseconds since anything was confirmed.
_INFO = struct.Struct("=8B13I")
_SENT_AGAIN, _UNCONFIRMED, _SINCE = 2, 12, 20
# Seconds between two looks at all connections.
_LOOK = 1.0
_TCP = (socket.AF_INET, socket.AF_INET6)

_ports: set[int] = set()
_starting = threading.Lock()


def ask(connection: socket.socket) -> None:
    """Lets the system end an idle connection whose other side is silent for half a minute.

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
    """From now on, connections of this process to and from a job's servers end in silence.

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
    of_job: dict[str, bool] = {}
    while True:
        found = sockets.opened()
        of_job = {name: of_job[name] for name in found.values() if name in of_job}
        for descriptor, name in found.items():
            if not of_job.get(name, True):
                continue
            # It may have ended, or be one that is not connected yet.
            with contextlib.suppress(OSError), sockets.borrowed(descriptor) as one:
                if name not in of_job:
                    of_job[name] = _is_of_job(one, frozenset(_ports))
                    if of_job[name]:
                        ask(one)
                elif is_silent(one, _SILENT):
                    one.shutdown(socket.SHUT_RDWR)
        time.sleep(_LOOK)


def _is_of_job(one: socket.socket, ports: Collection[int]) -> bool:
    """Whether a socket is a connection to or from one of these ports.

    Raises:
        OSError: when it is not connected.
    """
    facts = (socket.SO_DOMAIN, socket.SO_TYPE, socket.SO_ACCEPTCONN)
    family, kind, listens = (one.getsockopt(socket.SOL_SOCKET, fact) for fact in facts)
    if family not in _TCP or kind != socket.SOCK_STREAM or listens:
        return False
    return one.getsockname()[1] in ports or one.getpeername()[1] in ports


def is_silent(connection: socket.socket, seconds: float) -> bool:
    """Whether the other side has confirmed nothing for so long, though data were sent again.

    Args:
        connection: a connection over TCP.
        seconds: for how long.

    Raises:
        OSError: when it is none, or has ended.

    Example:

    >>> import socket
    >>> from tfdist.cluster.vanishing import is_silent
    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     with socket.create_connection(server.getsockname()) as one:
    ...         is_silent(one, 0)
    False
    """
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    facts = _INFO.unpack(info)
    waits = facts[_SENT_AGAIN] > 0 and facts[_UNCONFIRMED] > 0
    return waits and facts[_SINCE] >= 1000 * seconds
