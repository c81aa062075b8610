"""Notices the end of the chief, for the servers of a job, which do not end by themselves.

A server keeps a connection to the chief's own address open: the end of a connection is noticed at
once. But a connection may end before the chief does. gRPC closes a connection after a minute in
which nothing is sent. And `wait_for_peers`, which listens on that address first, closes every
connection at once. So two things must be seen: first the chief's TensorFlow server, which lives as
long as the process; then that the chief cannot be reached again. Then the chief has ended.
"""

from __future__ import annotations

import errno
import socket
import time

from tfdist import environment
from tfdist.cluster import vanishing
from tfdist.cluster.addresses import is_connected_to_itself, split_address
from tfdist.cluster.reaching import reason

# Seconds between attempts to reach the chief, and seconds until an attempt is given up.
_PAUSE = 0.1
_ATTEMPT = 5.0
# Python looks for signals this often: a signal that another thread has taken does not end a wait.
_LOOK = 1.0
# Seconds for which a machine must refuse connections before its chief counts as gone.
_REFUSED = 1.0


def wait_for_end(address: str, timeout: float) -> None:
    """Returns when the chief has run and ended.

    Args:
        address: "host:port" of the chief.
        timeout: seconds to wait for the chief's TensorFlow server. They start anew while the chief
            waits for its peers. A chief whose machine does not answer for so long counts as gone.

    Raises:
        TimeoutError: in one line, when the chief's TensorFlow server was not seen in that time.
        ValueError: when `address` is no address.

    Example:

    >>> from tfdist.cluster.addresses import free_ports
    >>> from tfdist.cluster.chief import wait_for_end
    >>> wait_for_end(f"localhost:{free_ports(1)[0]}", timeout=0.1)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    TimeoutError: The chief (localhost:...: connection refused) could not be reached within 0.1 s...
    """
    host, port = split_address(address)
    served = False
    met = time.monotonic()
    while True:
        started = time.monotonic()
        try:
            with socket.create_connection((host, port), _ATTEMPT) as connection:
                if is_connected_to_itself(connection):
                    raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
                served = _stay(connection) or served
            met = time.monotonic()
        except (OSError, UnicodeError) as error:
            refused = isinstance(error, ConnectionRefusedError)
            if started - met >= (_REFUSED if served and refused else timeout):
                if served:
                    return
                raise TimeoutError(
                    f"The chief ({address}: {reason(error)}) could not be reached within "
                    f"{timeout:g} s. Start it, check its address and the firewalls between, or "
                    f"set {environment.CONNECT_TIMEOUT} to wait longer. Received: chief={address}"
                ) from error
        time.sleep(_PAUSE)


def _stay(connection: socket.socket) -> bool:
    """Returns when the connection ends: whether the other side was a gRPC server and said hello."""
    served = False
    connection.settimeout(_LOOK)
    try:
        vanishing.ask(connection)
        while True:
            try:
                if not connection.recv(4096):
                    return served
                served = True
            except TimeoutError as error:
                if error.errno:  # not our own timeout: the machine does not answer the system
                    return served
    except OSError:  # as when the chief is killed
        return served
