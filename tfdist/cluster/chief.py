"""Notices the end of the chief, for the servers of a job, which do not end by themselves.

A connection to the chief's own address is kept open, since its end is noticed at once. It is not
yet the end of the chief: gRPC closes a connection on which nothing is sent after a minute, and
`wait_for_peers`, which listens there first, closes each at once. So the chief has ended when it
cannot be reached again, once its TensorFlow server was seen, which lives as long as the process.
"""

from __future__ import annotations

import errno
import socket
import time

from tfdist import environment
from tfdist.cluster.addresses import is_connected_to_itself, split_address
from tfdist.cluster.peers import reason

# Seconds between attempts to reach the chief, and after which one without answer is given up.
_PAUSE = 0.1
_ATTEMPT = 5.0
# Python looks for signals so often: one that another thread has taken does not end a wait.
_LOOK = 1.0
# Seconds for which a machine must refuse connections before its chief counts as gone.
_REFUSED = 1.0
# A machine that vanishes closes nothing: after 10 idle seconds it is asked 4 times, every 5.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}


def wait_for_end(address: str, timeout: float) -> None:
    """Returns when the chief has run and ended.

    Args:
        address: "host:port" of the chief.
        timeout: seconds to wait for its TensorFlow server. A chief that waits for its peers starts
            them anew. A chief whose machine does not answer counts as gone after so long, too.

    Raises:
        TimeoutError: in one line, when its TensorFlow server was not seen in that time.
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
    """Returns at the end of the connection: whether it was to a gRPC server, which says hello."""
    served = False
    connection.settimeout(_LOOK)
    try:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        while True:
            try:
                if not connection.recv(4096):
                    return served
                served = True
            except TimeoutError as error:
                if error.errno:  # not ours: nobody answers the system
                    return served
    except OSError:  # as when the chief is killed
        return served
