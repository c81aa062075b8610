"""What surrounds `fit`, `evaluate` and `predict`: Ctrl-C for all, and errors that name the rank."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tfdist.coordination import files
from tfdist.strategies.processes import Processes

# About how often, in seconds, the processes ask each other whether someone pressed Ctrl-C.
_SECONDS_BETWEEN_QUESTIONS = 1.0


class _Interruption:
    """Whether Ctrl-C was pressed in this process during a run."""

    requested = False


@contextlib.contextmanager
def coordinated(strategy: Any, agree: Callable[[], None]) -> Iterator[None]:
    """Surrounds a run of several processes.

    Before the outermost of nested runs, the processes `agree` that they do the same.

    The first Ctrl-C stops all of them at one step, with KeyboardInterrupt; a second one stops this
    process at once.

    Raises:
        ConnectionError: when another process is lost; it names its rank where it is known.
    """
    outermost = not is_running()
    _running.active = True
    try:
        with files.restored(strategy), strategy.processes.naming_lost_ranks():
            with _one_interrupt() if outermost else contextlib.nullcontext():
                if outermost:
                    agree()
                yield
    finally:
        if outermost:
            _running.active = False
            strategy.callbacks_run = False


_running = threading.local()


def is_running() -> bool:
    """Whether this thread is inside of `fit`, `evaluate` or `predict`."""
    return getattr(_running, "active", False)


@contextlib.contextmanager
def _one_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, previous)
        _Interruption.requested = True

    previous = signal.signal(signal.SIGINT, note)
    try:
        yield
        if _Interruption.requested:  # too late for the others to stop with this process
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, previous)
        _Interruption.requested = False


def raise_everywhere(processes: Processes, error: Exception | None, action: str) -> None:
    """Raises `error`, which this process has met, and in all others one that tells of it.

    Args:
        processes: the processes, all of which call this.
        error: what went wrong in this process; None for nothing.
        action: what rank 0 was about to do, for the message.

    Raises:
        RuntimeError: in the other processes, when rank 0 has met an error.
    """
    own = f"{type(error).__name__}: {error}" if error else ""
    (message, *_) = processes.all_gather_texts(own)
    if error:
        raise error
    if message:
        raise RuntimeError(f"Rank 0 could not {action}. Its error was: {message}")


class Questions:
    """Asks the other processes now and then whether someone pressed Ctrl-C.

    All of them ask at the same steps, about one second apart: the answers say how long the steps
    take, from which all compute the same next one.

    Args:
        processes: the processes.
    """

    def __init__(self, processes: Processes):
        self._processes = processes
        self._steps_between = 1
        self._steps_left = 1
        self._asked_at = time.monotonic()

    def start_again(self) -> None:
        """Called by all processes where other steps begin, which may take longer."""
        self._steps_between = self._steps_left = 1
        self._asked_at = time.monotonic()

    def ask_now_and_then(self) -> bool:
        """Called by all processes before each step.

        Returns:
            Whether it is time for what they do about once a second; the same in all of them.

        Raises:
            KeyboardInterrupt: in all processes, when Ctrl-C was pressed in one.
        """
        self._steps_left -= 1
        if self._steps_left > 0:
            return False
        milliseconds = int(1000 * (time.monotonic() - self._asked_at))
        rows = self._processes.all_gather([int(_Interruption.requested), milliseconds])
        if rows[:, 0].any():
            ranks = [rank for rank, requested in enumerate(rows[:, 0]) if requested]
            raise KeyboardInterrupt(f"Ctrl-C in rank {', '.join(map(str, ranks))}")
        seconds_per_step = max(int(rows[:, 1].max()), 1) / 1000 / self._steps_between
        wanted = int(_SECONDS_BETWEEN_QUESTIONS / seconds_per_step)
        self._steps_between = min(max(wanted, 1), 2 * self._steps_between)
        self._steps_left = self._steps_between
        self._asked_at = time.monotonic()
        return bool(rows[:, 1].max() > 500 * _SECONDS_BETWEEN_QUESTIONS)
