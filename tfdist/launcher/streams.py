"""The output of the ranks, from where they write it to where it is shown."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Iterator, Mapping

from tfdist.launcher import output
from tfdist.launcher.members import Member
from tfdist.launcher.watching import Watching

# After all ranks have ended, their output is read for this long at most.
_DRAIN = 2.0


class Streams:
    """The output streams of all ranks.

    Args:
        selector: waits for output.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        first = output.Screen(1)
        self._screens = {1: first, 2: first if output.same_stream(1, 2) else output.Screen(2)}
        # The launcher's own lines. They wait until earlier output of the ranks is shown.
        self._to_say: list[str] = []
        self._terminal: int | None = None

    @property
    def together(self) -> bool:
        """Whether output and errors are shown in the same place."""
        return self._screens[1] is self._screens[2]

    def watching(self) -> Watching:
        """What shows the ranks below their output."""
        return Watching(self._screens[1], self.say)

    @property
    def broken(self) -> bool:
        """Whether nobody reads what is shown."""
        return any(screen.broken for screen in self._screens.values())

    @contextlib.contextmanager
    def opened(self, member: Member, log: output.Log, first: bool) -> Iterator[Mapping[int, int]]:
        """The descriptors that a rank writes to. Leave the context once the rank is started.

        If the launcher has a terminal, only the first rank gets one. The output of other ranks is
        shown line by line.

        Args:
            member: the rank.
            log: where its output is kept.
            first: whether its output is shown as it is.
        """
        prefix = None if first else f"[{member.label}] ".encode()
        writers = {}
        for fd in (1,) if self.together else (1, 2):
            reader, writers[fd] = output.open_channel(fd) if first else os.pipe()
            os.set_blocking(reader, False)
            if first and os.isatty(reader):
                self._terminal = reader
            stream = output.Stream(reader, self._screens[fd], log, prefix)
            self._selector.register(reader, selectors.EVENT_READ, stream)
        try:
            yield writers
        finally:
            for writer in writers.values():
                os.close(writer)

    def say(self, line: str) -> None:
        """Shows a line of the launcher, after the output that there is."""
        self._to_say.append(line)

    def show_said(self) -> None:
        """Shows the launcher's lines."""
        while self._to_say:
            self._screens[2].write_line((output.SAYS + self._to_say.pop(0)).encode())

    def read(self, key: selectors.SelectorKey) -> None:
        """Takes what has come on a stream."""
        if not key.data.read():
            self._selector.unregister(key.fileobj)
            key.data.close()

    def resize(self) -> None:
        """Gives the first rank's terminal the size of the launcher's."""
        if self._terminal is not None:
            output.copy_size(1, self._terminal)

    def drain(self) -> None:
        """Reads the rest of the ranks' output, until their streams end."""
        end = time.monotonic() + _DRAIN
        while self._selector.get_map() and time.monotonic() < end:
            for key, _ in self._selector.select(0.1):
                self.read(key)
        for key in list(self._selector.get_map().values()):
            key.data.close()
        for screen in self._screens.values():
            screen.end_line()
