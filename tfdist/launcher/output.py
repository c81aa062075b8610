"""What the ranks print: shown on the launcher's own streams, and kept in a log per rank."""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import struct
import termios
import time

from tfdist.launcher.banners import Banners

# The launcher's own lines begin with this.
SAYS = "tfdist run: "

# A line without an end is shown in pieces of this length.
_LONGEST_LINE = 65536
_LAST_LINES = 15

# Clears all rows below the cursor. There is a row below it while lines are shown there.
_HIDE_BELOW = b"\x1b7\x1b[1B\r\x1b[J\x1b8"


class Screen:
    """One of the launcher's own streams, on which several ranks write.

    Args:
        fd: its file descriptor.

    Attributes:
        broken: nobody reads the stream any more. From then on, what is written is dropped.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self._inside_line = False
        self._below: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Writes `data` as it is."""
        self._inside_line = not data.endswith(b"\n")
        self._write(data)

    def write_line(self, line: bytes) -> None:
        """Writes a separate line, even if an unfinished line such as a progress bar is shown."""
        self._write(b"\n" * self._inside_line + line + b"\n")
        self._inside_line = False

    def end_line(self) -> None:
        """Makes sure that what follows begins on a new line."""
        if self._inside_line:
            self.write(b"\n")

    def show_below(self, lines: list[bytes]) -> None:
        """Shows lines below all that is written, in place of those that were shown there.

        The stream must be a terminal that understands ANSI's sequences. What is written goes on
        where it was, also in the middle of a line.

        Args:
            lines: none of them longer than the terminal is wide.
        """
        hidden = _HIDE_BELOW * bool(self._below)
        self._below = lines
        self._send(hidden + _drawn(lines))

    def _write(self, data: bytes) -> None:
        if self._below:
            data = _HIDE_BELOW + data + _drawn(self._below)
        self._send(data)

    def _send(self, data: bytes) -> None:
        while data and not self.broken:
            try:
                data = data[os.write(self.fd, data) :]
            except BlockingIOError:  # whoever gave us the stream made it non-blocking
                select.select([], [self.fd], [])
            except OSError:
                self.broken = True


def _drawn(lines: list[bytes]) -> bytes:
    """What shows `lines` below the cursor, which stays where it is.

    IND (ESC D) scrolls where the cursor is in the last row, so there is room below it then.
    """
    if not lines:
        return b""
    room = b"\x1bD" * len(lines) + b"\x1b[%dA" % len(lines)
    return room + b"\x1b7" + b"".join(b"\x1b[1B\r\x1b[2K" + line for line in lines) + b"\x1b8"


class Log:
    """Everything that one rank prints, in a file, and its last lines without banners.

    Args:
        path: the file; an existing file is overwritten.

    Attributes:
        traceback_at: when the last traceback began, as `time.monotonic`; None if there was none.
        lost_a_peer: whether the rank said that it failed because another rank was gone.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.traceback_at: float | None = None
        self.lost_a_peer = False
        self._last: collections.deque[bytes] = collections.deque(maxlen=_LAST_LINES)
        with open(path, "wb"):
            pass

    def write(self, data: bytes) -> None:
        """Keeps `data` as it is. No file stays open: an elastic job has ever more ranks."""
        with (
            contextlib.suppress(OSError),  # a full disk must not end the job
            open(self.path, "ab", buffering=0) as file,
        ):
            file.write(data)

    def remember(self, line: bytes) -> None:
        """Keeps `line` as the last line."""
        if line.startswith(b"Traceback (most recent call last)"):
            self.traceback_at = time.monotonic()
        if line.startswith(b"ConnectionError") and b" lost its connection to " in line:
            self.lost_a_peer = True
        if line.strip():
            self._last.append(line)

    def begin_again(self) -> None:
        """Called when the rank is started again: it has not said yet how it ends."""
        self.traceback_at = None
        self.lost_a_peer = False

    @property
    def last_lines(self) -> list[bytes]:
        """The last lines that are not empty, 15 at most."""
        return list(self._last)


class Stream:
    """One output stream of one rank.

    Args:
        fd: where the rank's output can be read; it is closed with the stream.
        screen: where the output is shown.
        log: where the output is kept.
        prefix: put in front of each line on the screen; TensorFlow's banners are then left out.
            With None everything is shown as it is, byte by byte: a progress bar needs this.
    """

    def __init__(self, fd: int, screen: Screen, log: Log, prefix: bytes | None) -> None:
        self.fd = fd
        self._screen = screen
        self._log = log
        self._prefix = prefix
        self._open_line = b""
        self._banners = Banners()

    def read(self) -> bool:
        """Takes the available output. Returns False at the end of the stream."""
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return True
        except OSError:  # the end of a pseudo-terminal is an error
            data = b""
        if not data:
            return False
        self._log.write(data)
        if self._prefix is None:
            self._screen.write(data)
        *lines, self._open_line = (self._open_line + data).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._open_line) > _LONGEST_LINE:
            # Most likely a progress bar: only its last state counts.
            self._open_line = self._open_line[self._open_line.rfind(b"\r") + 1 :]
            if len(self._open_line) > _LONGEST_LINE:
                self._line(self._open_line)
                self._open_line = b""
        return True

    def close(self) -> None:
        """Shows an unfinished last line, and closes the descriptor."""
        if self._open_line:
            self._line(self._open_line)
            self._open_line = b""
        os.close(self.fd)

    def _line(self, line: bytes) -> None:
        line = visible(line)
        if self._banners.match(line):
            return
        self._log.remember(line)
        if self._prefix is not None:
            self._screen.write_line(self._prefix + line)


def visible(line: bytes) -> bytes:
    r"""What a terminal shows of a line: the text after the last return to its beginning.

    Args:
        line: without the newline at its end.

    Example:

    >>> from tfdist.launcher.output import visible
    >>> visible(b"1/2 [==    ]\b\b\b\r2/2 [======] done\r")
    b'2/2 [======] done'
    """
    return line.rstrip(b"\r").rpartition(b"\r")[2].replace(b"\b", b"")


def same_stream(first: int, second: int) -> bool:
    """Whether two file descriptors are the same file, pipe or terminal."""
    a, b = os.fstat(first), os.fstat(second)
    return (a.st_dev, a.st_ino, a.st_rdev) == (b.st_dev, b.st_ino, b.st_rdev)


def open_channel(shown_on: int) -> tuple[int, int]:
    """What a rank writes to: a new terminal if its output is shown on one, else a pipe.

    Args:
        shown_on: the descriptor on which the rank's output will be shown.

    Returns:
        The descriptor to read from, and the descriptor that the rank writes to.
    """
    if not os.isatty(shown_on):
        return os.pipe()
    reader, writer = os.openpty()
    # Change nothing on the way: the real terminal does the processing.
    mode = termios.tcgetattr(writer)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(writer, termios.TCSANOW, mode)
    copy_size(shown_on, reader)
    return reader, writer


def copy_size(source: int, target: int) -> None:
    """Gives the terminal `target` the size of the terminal `source`."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
