"""The signals that reach the launcher, as bytes to read."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
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
