"""The signals that reach the launcher, as bytes to read."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

_WANTED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGCHLD,
    signal.SIGWINCH,
)


@contextlib.contextmanager
def received() -> Iterator[int]:
    """A descriptor to read: each signal that arrives is one byte."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    # Ignored signals stay ignored: this is how nohup works.
    wanted = [number for number in _WANTED if signal.getsignal(number) != signal.SIG_IGN]
    before: dict[signal.Signals, Any] = {n: signal.signal(n, lambda *_: None) for n in wanted}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


class EndedError(Exception):
    """A signal asks this process to end.

    Args:
        number: the signal; SIGALRM when there is no more time.

    Attributes:
        number: as above.
    """

    def __init__(self, number: signal.Signals):
        super().__init__(number.name)
        self.number = number


@contextlib.contextmanager
def raised(seconds: float | None) -> Iterator[None]:
    """Raises EndedError for a signal that arrives, also where signals have no default: process 1.

    Args:
        seconds: the time limit; None for none.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise EndedError(signal.Signals(number))

    wanted: dict[signal.Signals, Any] = {
        signal.SIGTERM: end,
        signal.SIGHUP: end,
        signal.SIGALRM: end,
        signal.SIGUSR1: signal.SIG_IGN,
    }
    ignored = [number for number in wanted if signal.getsignal(number) == signal.SIG_IGN]
    before = {n: signal.signal(n, act) for n, act in wanted.items() if n not in ignored}
    signal.setitimer(signal.ITIMER_REAL, seconds or 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in before.items():
            signal.signal(number, handler)
