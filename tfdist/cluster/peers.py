"""Waits until all workers are there, before TensorFlow's own server starts.

TensorFlow waits for missing peers too, but for an hour, and without saying which ones are missing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import socket
import time
from collections.abc import Sequence
from typing import Any

from tfdist import environment
from tfdist.arguments import check_instance, shown
from tfdist.cluster.addresses import (
    is_connected_to_itself,
    listen,
    port_error,
    split_address,
)
from tfdist.limits import MOST_SECONDS

DEFAULT_TIMEOUT = 60.0

# Seconds between attempts to reach a peer, at first and at most.
_SOON = 0.05
_LATE = 0.5
# Seconds after which an attempt is given up.
_ATTEMPT = 5.0
_MOST_NAMED = 8


def wait_for_peers(addresses: Sequence[str], rank: int, timeout: float | None = None) -> None:
    """Returns when every worker has been reached; raises when some are missing for too long.

    All workers call this before they start TensorFlow's server. Meanwhile each worker listens on
    its own port and connects to the ports of the others. Nothing is sent, so a peer that already
    runs TensorFlow's server counts too. Afterwards the own port is free for TensorFlow's server.

    Args:
        addresses: the workers' addresses "host:port", in the order of their ranks.
        rank: the place of this process in `addresses`.
        timeout: seconds to wait. None for the environment variable TFDIST_CONNECT_TIMEOUT, which
            is 60 where it is not set.

    Raises:
        TimeoutError: in one line, with the rank and address of each peer that is missing.
        OSError: in one line, when the own port is in use.
        ValueError: when `timeout` or TFDIST_CONNECT_TIMEOUT is no positive number, and when
            `rank` or an address is not valid.

    Example:

    >>> from tfdist.cluster import wait_for_peers
    >>> from tfdist.cluster.addresses import free_ports
    >>> wait_for_peers([f"localhost:{free_ports(1)[0]}"], rank=0)  # nobody to wait for
    """
    timeout = connect_timeout(timeout)
    check_instance("addresses", addresses, Sequence, "list of addresses")
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < len(addresses):
        raise ValueError(
            f"`rank` must be the place of this worker among {len(addresses)}. Received: "
            f"rank={shown(rank)}"
        )
    missing = missing_peers(addresses, rank, timeout)
    if missing:
        workers = "Worker" if len(missing) == 1 else "Workers"
        raise TimeoutError(
            f"{workers} {listed(missing)} could not be reached within {timeout:g} s by worker "
            f"{rank} ({addresses[rank]}), which is one of {len(addresses)}. Start all workers, "
            f"check their addresses and the firewalls between them, or set "
            f"{environment.CONNECT_TIMEOUT} to "
            f"wait longer. Received: addresses={shortened(addresses)}"
        )


def missing_peers(
    addresses: Sequence[str], rank: int, timeout: float, names: Sequence[str] | None = None
) -> list[str]:
    """Waits for all peers, as `wait_for_peers` does, and tells which ones are missing.

    Args:
        addresses: the addresses "host:port" of all processes.
        rank: the place of this process in `addresses`.
        timeout: seconds to wait.
        names: the names of the processes; None for their places in `addresses`.

    Returns:
        The name, address and problem of each peer that could not be reached.

    Raises:
        OSError: in one line, when the own port is in use.
        ValueError: when an address is not valid.

    Example:

    >>> from tfdist.cluster.addresses import free_ports
    >>> from tfdist.cluster.peers import missing_peers
    >>> own = f"localhost:{free_ports(1)[0]}"
    >>> missing_peers([own, "localhost:1"], 0, timeout=0.1, names=["chief", "ps 0"])
    ['ps 0 (localhost:1: connection refused)']
    """
    names = names or [str(place) for place in range(len(addresses))]
    peers = [_Peer(n, a, *split_address(a)) for n, a in zip(names, addresses)]
    del peers[rank]
    _, port = split_address(addresses[rank])
    try:
        server = listen(port)
    except OSError as error:
        raise OSError(port_error(addresses[rank], error)) from error
    with server, selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for peer in peers:
            stack.callback(peer.give_up, selector, "")
        selector.register(server, selectors.EVENT_READ)
        missing = _reach(peers, selector, time.monotonic() + timeout)
    return [f"{peer.name} ({peer.address}: {peer.problem})" for peer in missing]


def connect_timeout(timeout: float | None = None) -> float:
    """The seconds to wait for peers.

    Args:
        timeout: what the caller wants; None for TFDIST_CONNECT_TIMEOUT, or else 60.

    Returns:
        The number of seconds.

    Raises:
        ValueError: when the number is not positive, or more than 1,000,000.

    Example:

    >>> from tfdist.cluster.peers import connect_timeout
    >>> connect_timeout(5)
    5.0
    """
    name = "timeout"
    given: float | str = timeout if timeout is not None else DEFAULT_TIMEOUT
    if timeout is None and os.environ.get(environment.CONNECT_TIMEOUT):
        name, given = environment.CONNECT_TIMEOUT, os.environ[environment.CONNECT_TIMEOUT]
    try:
        seconds = float(given)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    if isinstance(given, bool) or not 0 < seconds <= MOST_SECONDS:
        raise ValueError(
            f"{name} must be a number of seconds > 0, {MOST_SECONDS:,.0f} at most. "
            f"Received: {name}={shown(given)}"
        )
    return seconds


@dataclasses.dataclass
class _Peer:
    """A peer, and the present attempt to reach it."""

    name: str
    address: str
    host: str
    port: int
    problem: str = "no answer"
    reached: bool = False
    next_attempt: float = 0.0
    pause: float = _SOON
    attempt: socket.socket | None = None
    # The host's addresses, looked up once and then tried in turn.
    found: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)

    def start(self, selector: selectors.BaseSelector, now: float) -> None:
        """Begins to connect; `selector` tells when the attempt has ended."""
        self.next_attempt = now + _ATTEMPT
        try:
            if not self.found:
                kind = socket.SOCK_STREAM
                infos = socket.getaddrinfo(self.host, self.port, type=kind)
                self.found = [(family, address) for family, _, _, _, address in infos]
            family, address = self.found[0]
            self.found.append(self.found.pop(0))
            self.attempt = socket.socket(family, socket.SOCK_STREAM)
            self.attempt.setblocking(False)
            # The system may give this socket the very port that a server here is about to bind.
            self.attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(BlockingIOError):
                self.attempt.connect(address)
            selector.register(self.attempt, selectors.EVENT_WRITE, self)
        except (OSError, UnicodeError) as error:
            self.give_up(selector, reason(error))

    def finish(self, selector: selectors.BaseSelector) -> None:
        """Takes note of how the attempt ended."""
        assert self.attempt is not None
        code = self.attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            return self.give_up(selector, os.strerror(code).lower())
        try:
            self.reached = not is_connected_to_itself(self.attempt)
        except OSError:
            self.reached = False
        self.give_up(selector, "connection refused")

    def give_up(self, selector: selectors.BaseSelector, problem: str) -> None:
        """Ends the attempt, if there is one."""
        if self.attempt is not None:
            with contextlib.suppress(KeyError, ValueError):
                selector.unregister(self.attempt)
            self.attempt.close()
            self.attempt = None
        self.problem = problem or self.problem
        self.next_attempt = time.monotonic() + self.pause
        self.pause = min(2 * self.pause, _LATE)


def _reach(peers: list[_Peer], selector: selectors.BaseSelector, end: float) -> list[_Peer]:
    """Tries to reach all of `peers` until the time `end`. Returns the missing ones."""
    while True:
        now = time.monotonic()
        missing = [peer for peer in peers if not peer.reached]
        if not missing or now >= end:
            return missing
        for peer in missing:
            if now >= peer.next_attempt:
                if peer.attempt is not None:
                    peer.give_up(selector, "no answer")
                peer.start(selector, now)
        soonest = min(end, *(peer.next_attempt for peer in missing))
        for key, _ in selector.select(max(0.0, soonest - time.monotonic())):
            if isinstance(key.data, _Peer):
                key.data.finish(selector)
            else:
                _turn_away(key.fileobj)


def _turn_away(server: Any) -> None:
    """Accepts and closes connections: the peers only want to know that this process is there."""
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


def reason(error: Exception) -> str:
    """Why a connection could not be made, in a few words.

    Args:
        error: what was raised.

    Example:

    >>> from tfdist.cluster.peers import reason
    >>> reason(ConnectionRefusedError(111, "Connection refused"))
    'connection refused'
    """
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "the name is not known"
    if isinstance(error, TimeoutError):
        return "no answer"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).lower()


def listed(names: Sequence[str]) -> str:
    """Names for a message: the first names, and the number of further names.

    Example:

    >>> from tfdist.cluster.peers import listed
    >>> listed(["ps 0", "ps 1"])
    'ps 0, ps 1'
    """
    shown = [*names[:_MOST_NAMED]]
    if len(names) > _MOST_NAMED:
        shown.append(f"{len(names) - _MOST_NAMED} more")
    return ", ".join(shown)


def shortened(addresses: Sequence[str]) -> str:
    """Addresses for a message: only the first addresses.

    Example:

    >>> from tfdist.cluster.peers import shortened
    >>> shortened(["a:2222"])
    "['a:2222']"
    """
    shown = list(addresses[:_MOST_NAMED])
    return f"{shown[:-1]} and more" if len(addresses) > _MOST_NAMED else f"{shown}"
