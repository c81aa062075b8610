"""The sockets of this process, also those that a library has opened; on Linux."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

DESCRIPTORS = "/proc/self/fd"
"""Where a process finds its open files."""


def opened() -> dict[int, str]:
    """The open sockets of this process, by descriptor. Their names tell them apart for ever.

    Example:

    >>> import socket
    >>> from tfdist.cluster.sockets import opened
    >>> with socket.socket() as one:
    ...     one.fileno() in opened()
    True
    """
    found = {}
    for name in os.listdir(DESCRIPTORS):
        with contextlib.suppress(OSError):
            target = os.readlink(f"{DESCRIPTORS}/{name}")
            if target.startswith("socket:"):
                found[int(name)] = target
    return found


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """In this context, a socket that somebody else has opened, and that stays open afterwards.

    What is set stays, too. Nothing is set by this function, whatever `socket.setdefaulttimeout` was
    called with. The kind of the socket is not looked up: ask `getsockopt`.

    Args:
        descriptor: of the socket.

    Raises:
        OSError: when it is no socket, or not open any more.

    Example:

    >>> import socket
    >>> from tfdist.cluster.sockets import borrowed
    >>> with socket.create_server(("127.0.0.1", 0)) as one:
    ...     with borrowed(one.fileno()) as same:
    ...         same.getsockname() == one.getsockname()
    True
    """
    kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK  # else Python may set it to block, or not to
    one = socket.socket(socket.AF_INET, kind, 0, fileno=descriptor)
    try:
        yield one
    finally:
        one.detach()
