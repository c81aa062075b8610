"""Attempts to connect to other processes: whether they are there. Nothing is sent."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import socket
import time
from collections.abc import Mapping
from typing import Any

from tfdist.cluster.addresses import is_connected_to_itself, split_address

# Seconds between attempts to reach a peer, at first and at most.
_SOON = 0.05
_LATE = 0.5
# Seconds after which an attempt is given up.
_ATTEMPT = 5.0


@dataclasses.dataclass
class Peer:
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


def unreachable(addresses: Mapping[str, str], timeout: float) -> list[str]:
    """Waits for processes that others have connected to before; the own port is not needed.

    Args:
        addresses: the addresses "host:port" by the names of the processes.
        timeout: seconds to wait.

    Returns:
        The name, address and problem of each process that could not be reached.

    Example:

    >>> from tfdist.cluster.reaching import unreachable
    >>> unreachable({"ps 0": "localhost:1"}, timeout=0.1)
    ['ps 0 (localhost:1: connection refused)']
    """
    peers = [Peer(n, a, *split_address(a)) for n, a in addresses.items()]
    with selectors.DefaultSelector() as selector:
        return names_of_missing(peers, selector, timeout)


def names_of_missing(
    peers: list[Peer], selector: selectors.BaseSelector, timeout: float
) -> list[str]:
    """Tries to reach peers. Returns those that could not be reached.

    Args:
        peers: the peers.
        selector: an empty one, or one with the own listening socket.
        timeout: seconds to try.
    """
    with contextlib.ExitStack() as stack:
        for peer in peers:
            stack.callback(peer.give_up, selector, "")
        left = _reach(peers, selector, time.monotonic() + timeout)
        return [f"{peer.name} ({peer.address}: {peer.problem})" for peer in left]


def _reach(peers: list[Peer], selector: selectors.BaseSelector, end: float) -> list[Peer]:
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
            if isinstance(key.data, Peer):
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

    >>> from tfdist.cluster.reaching import reason
    >>> reason(ConnectionRefusedError(111, "Connection refused"))
    'connection refused'
    """
    if isinstance(error, (socket.gaierror, UnicodeError)):
        return "the name is not known"
    if isinstance(error, TimeoutError):
        return "no answer"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).lower()
