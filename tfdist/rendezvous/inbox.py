"""Messages of channels, for one thread that waits for them in a selector."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Iterable

from tfdist.rendezvous.channel import Channel, Message
from tfdist.rendezvous.reception import receive


class Inbox:
    """Messages that were received in other threads."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[tuple[Channel, Message | None]] = queue.SimpleQueue()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)

    def fileno(self) -> int:
        """The descriptor; it can be read when there are messages."""
        return self._reader

    def put(self, channel: Channel, message: Message | None) -> None:
        """Adds a message; None says that the other side is gone. In any thread."""
        self._messages.put((channel, message))
        with contextlib.suppress(OSError):  # full, and so it can be read
            os.write(self._writer, b"x")

    def listen(self, channel: Channel) -> None:
        """Begins to receive, in a thread."""
        threading.Thread(target=receive, args=(channel, self.put), daemon=True).start()

    def taken(self) -> list[tuple[Channel, Message | None]]:
        """The messages that there are."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 65536)
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._messages.get_nowait())
        return found

    def wait_for_end(self, channels: Iterable[Channel], seconds: float) -> None:
        """Waits until the other sides of channels are gone, and closes the channels.

        Args:
            channels: those that are waited for. What else they say is dropped.
            seconds: how long to wait.
        """
        there, end = set(channels), time.monotonic() + seconds
        while there and select.select([self], [], [], max(0.0, end - time.monotonic()))[0]:
            there -= {channel for channel, message in self.taken() if message is None}
        for channel in there:
            channel.close()
