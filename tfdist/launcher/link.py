"""The launcher's end of the connection to a rank of an elastic job; see `tfdist.elastic.link`."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable


class Link:
    """The launcher's end of the connection to one rank, read like a stream of the rank's output.

    Args:
        take: called with each message of the rank.
    """

    def __init__(self, take: Callable[[dict], None]):
        self._socket, self.other = socket.socketpair()
        self._socket.setblocking(False)
        self._take = take
        self._open_line = b""

    @property
    def fd(self) -> int:
        """The descriptor to wait for."""
        return self._socket.fileno()

    def read(self) -> bool:
        """Takes the messages that have come. Returns False when the rank is gone."""
        try:
            data = self._socket.recv(65536)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        *lines, self._open_line = (self._open_line + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return bool(data)

    def say(self, kind: str, **details: object) -> None:
        """Sends a message. A rank that is gone is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps({"kind": kind, **details}).encode() + b"\n")

    def release(self) -> None:
        """Closes the rank's end here, once the rank has it or is gone."""
        self.other.close()

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()
