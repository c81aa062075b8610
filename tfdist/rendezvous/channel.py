"""Messages between launchers that know the same secret."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

_LONGEST = 16 * 1024 * 1024  # bytes of a message
_PATIENCE = 10.0  # seconds, for the first messages
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}


class NotAuthenticatedError(Exception):
    """The other side does not know the secret, or is no launcher."""


class Channel:
    """A connection on which each message has a code that needs the secret.

    The code is an HMAC-SHA256 (RFC 2104) of the message, its number, its direction, and a random
    number of each side. So no message can be made, changed, repeated or left out by others. They
    can read messages: addresses, ranks, and how ranks end.

    Args:
        connection: a connected socket. It belongs to the channel.
        secret: what both sides know.
        serves: whether this side has accepted the connection.

    Raises:
        NotAuthenticatedError: when the other side does not know the secret.
        OSError: when the connection breaks.
    """

    def __init__(self, connection: socket.socket, secret: bytes, *, serves: bool):
        self._connection = connection
        self._file = connection.makefile("rb")
        self._secret = secret
        self._names = ("server", "client") if serves else ("client", "server")
        self._numbers = [0, 0]
        for name, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(_PATIENCE)
        own = secrets.token_hex(16)
        connection.sendall(own.encode() + b"\n")
        other = self._file.readline(100).decode(errors="replace").strip()
        self._both = f"{own} {other}" if serves else f"{other} {own}"
        self.send("tfdist")
        if self.receive() != "tfdist":
            raise NotAuthenticatedError("the other side is no launcher of tfdist")
        connection.settimeout(None)

    def fileno(self) -> int:
        """The descriptor; it can be read for a message, and when the other side is gone."""
        return self._connection.fileno()

    @property
    def own_host(self) -> str:
        """The address of this side, as the other one sees it."""
        return self._connection.getsockname()[0]

    def _code(self, side: int, text: bytes) -> bytes:
        number = self._numbers[side]
        self._numbers[side] += 1
        beginning = f"{self._both} {self._names[side]} {number} ".encode()
        return hmac.new(self._secret, beginning + text, hashlib.sha256).hexdigest().encode()

    def send(self, message: object) -> None:
        """Sends what JSON can express."""
        text = json.dumps(message).encode()
        self._connection.sendall(self._code(0, text) + b" " + text + b"\n")

    def receive(self) -> Any:
        """The next message. Waits for it.

        Raises:
            NotAuthenticatedError: when the message was not made with the secret.
            ConnectionError: when the other side is gone.
        """
        line = self._file.readline(_LONGEST)
        if not line.endswith(b"\n"):
            raise ConnectionError("the other side is gone")
        code, _, text = line[:-1].partition(b" ")
        if not hmac.compare_digest(code, self._code(1, text)):
            raise NotAuthenticatedError("the other side has another secret")
        return json.loads(text)

    def close(self) -> None:
        """Closes the connection; whoever waits for a message on either side learns of it."""
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was first
        self._file.close()
        self._connection.close()
