"""Messages between launchers that know the same secret."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import re
import secrets
import socket
import threading
import time
from typing import Any

_GREETING = "tfdist rendezvous 2"  # another number for other messages
_PATIENCE = 10.0  # seconds, until both sides have greeted
_GREETING_BYTES = 200
_MOST_BYTES = 16 * 1024 * 1024
_READ_BYTES = 64 * 1024
_NUMBER = re.compile("[0-9a-f]{32}")
# A machine that has lost its power or its network is noticed within about half a minute.
_OPTIONS = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}

Message = dict[str, Any]
"""What launchers tell each other."""


class NotAuthenticatedError(Exception):
    """The other side does not know the secret, or is no launcher."""


class Channel:
    """A connection on which each message has a code that needs the secret.

    The code is an HMAC-SHA256 (RFC 2104) of the message, its number, its direction, and a random
    number of each side. So nobody else can make, change, repeat or skip a message; but whoever is
    on the way can read messages, and can cut the connection.

    Both sides greet while the channel is made, which takes 10 seconds at most.

    Args:
        connection: a connected socket. It belongs to the channel.
        secret: what both sides know.
        serves: whether this side has accepted the connection.

    Raises:
        NotAuthenticatedError: when the other side does not know the secret.
        OSError: when the connection breaks, or the other side says nothing.
    """

    def __init__(self, connection: socket.socket, secret: bytes, *, serves: bool):
        self._connection = connection
        self._secret = secret
        self._directions = ("server", "client") if serves else ("client", "server")
        self._counts = [0, 0]
        self._sending = threading.Lock()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        end = time.monotonic() + _PATIENCE
        connection.settimeout(_PATIENCE)
        own = secrets.token_hex(16)
        connection.sendall(own.encode() + b"\n")
        other = self._line(_GREETING_BYTES, end).decode(errors="replace")
        if not _NUMBER.fullmatch(other):
            raise NotAuthenticatedError("the other side is no launcher of tfdist")
        self._numbers = f"{own} {other}" if serves else f"{other} {own}"
        self.send(_GREETING)
        if self._message(_GREETING_BYTES, end) != _GREETING:
            raise NotAuthenticatedError("the other side is a launcher of another version")
        connection.settimeout(None)

    def fileno(self) -> int:
        """The descriptor; it can be read for a message, and when the other side is gone."""
        return self._connection.fileno()

    @property
    def own_host(self) -> str:
        """The address of this side, as the other one sees it."""
        return self._connection.getsockname()[0]

    def send(self, message: object) -> None:
        """Sends what JSON can express; in any thread."""
        text = json.dumps(message).encode()
        with self._sending:
            self._connection.sendall(self._code(0, text) + b" " + text + b"\n")

    def receive(self) -> Any:
        """The next message. Waits for it.

        Raises:
            NotAuthenticatedError: when the message was not made with the secret.
            OSError: when the other side is gone.
        """
        return self._message(_MOST_BYTES, None)

    def close(self) -> None:
        """Closes the connection. Whoever waits for a message on either side learns of it."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _code(self, side: int, text: bytes) -> bytes:
        count = self._counts[side]
        self._counts[side] += 1
        beginning = f"{self._numbers} {self._directions[side]} {count} ".encode()
        return hmac.new(self._secret, beginning + text, hashlib.sha256).hexdigest().encode()

    def _message(self, most: int, end: float | None) -> Any:
        code, _, text = self._line(most, end).partition(b" ")
        if not hmac.compare_digest(code, self._code(1, text)):
            raise NotAuthenticatedError("the other side has another secret")
        return json.loads(text)

    def _line(self, most: int, end: float | None) -> bytes:
        # Not a byte of the next message: what was read ahead would not show in `fileno`.
        line = bytearray()
        while len(line) < most:
            if end is not None:
                self._connection.settimeout(max(0.001, end - time.monotonic()))
            there = self._connection.recv(min(_READ_BYTES, most - len(line)), socket.MSG_PEEK)
            if not there:
                raise ConnectionError("the other side is gone")
            end_of_line = there.find(b"\n") + 1
            line += self._connection.recv(end_of_line or len(there))
            if end_of_line:
                return bytes(line[:-1])
        raise NotAuthenticatedError("the other side is no launcher of tfdist")
