"""Lets launchers in that know the secret, and receives what they say, in threads."""

from __future__ import annotations

import collections
import contextlib
import socket
import threading
import time
from collections.abc import Callable

from tfdist.rendezvous.channel import Channel, Message, NotAuthenticatedError

_PAUSE = 0.2  # seconds, if nobody can be accepted for the moment

Take = Callable[[Channel, Message | None], None]
"""Called in a channel's thread with each message, and with None once the other side is gone."""


class Reception:
    """Accepts connections, and receives the messages of each in a thread of its own.

    Args:
        listener: listens at the rendezvous.
        secret: what launchers know.
        greetings: how many may greet at the same time; the next one takes the place of the first.
        take: takes the messages.
    """

    def __init__(self, listener: socket.socket, secret: bytes, greetings: int, take: Take):
        self._listener = listener
        self._secret = secret
        self._most = greetings
        self._greeting: collections.deque[socket.socket] = collections.deque()
        self._take = take
        self._accepts = True
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while self._accepts:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed; or there are too many descriptors for the moment
                time.sleep(_PAUSE)
                continue
            self._greeting.append(connection)
            if len(self._greeting) > self._most:
                _shut(self._greeting.popleft())  # a launcher greets at once
            try:
                threading.Thread(target=self._greet, args=[connection], daemon=True).start()
            except RuntimeError:  # there are too many threads for the moment
                self._forget(connection)
                connection.close()
                time.sleep(_PAUSE)

    def _greet(self, connection: socket.socket) -> None:
        try:
            channel = Channel(connection, self._secret, serves=True)
        except (OSError, NotAuthenticatedError, ValueError):
            connection.close()  # the other side says why, if it is a launcher
            return
        finally:
            self._forget(connection)
        receive(channel, self._take)

    def _forget(self, connection: socket.socket) -> None:
        with contextlib.suppress(ValueError):  # another one has its place
            self._greeting.remove(connection)

    def close(self) -> None:
        """Lets nobody in any more. Channels stay open."""
        self._accepts = False
        _shut(self._listener)  # wakes the thread that accepts
        self._listener.close()


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def receive(channel: Channel, take: Take) -> None:
    """Receives messages until the other side is gone, or says what no launcher says."""
    with contextlib.suppress(OSError, NotAuthenticatedError, ValueError):
        while isinstance(message := channel.receive(), dict):
            take(channel, message)
    channel.close()
    take(channel, None)
