"""Messages to a launcher, sent in a thread: a network that is cut must not hold up the sender."""

from __future__ import annotations

import contextlib
import queue
import threading

from tfdist.rendezvous.channel import Channel, Message


class Outbox:
    """Sends messages in their order.

    Args:
        channel: the connection to the launcher. If the launcher is gone, whoever receives from it
            notes that.
    """

    def __init__(self, channel: Channel):
        self._channel = channel
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._send, daemon=True).start()

    def put(self, message: Message) -> None:
        """Adds a message."""
        self._messages.put(message)

    def _send(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._channel.send(self._messages.get())
