"""Surrounds `fit`, `evaluate` and `predict`: Ctrl-C for all, and errors that name the rank."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from tfdist.engines.processes import Processes
from tfdist.processes import files
from tfdist.processes.contracts import Coordinated, KerasRunner

# About how many seconds pass until the processes again ask each other about Ctrl-C.
# The least and the most time between questions. Between them it is so many times what a question
# takes, as on a slow link each is as long as several steps.
_SECONDS_BETWEEN_QUESTIONS = 1.0
_MOST_SECONDS_BETWEEN_QUESTIONS = 30.0
_TIMES_A_QUESTION = 100

# Two numbers of milliseconds travel as one; each is less than this.
_HIGH = 2**31


class _Interruption:
    """Whether Ctrl-C was pressed in this process during a run."""

    requested = False


@contextlib.contextmanager
def coordinated(strategy: Coordinated, agree: Callable[[], None]) -> Iterator[None]:
    """Surrounds a run of several processes.

    Before the outermost of nested runs, the processes `agree` that they do the same.

    The first Ctrl-C stops all processes at the same step, with KeyboardInterrupt. A second Ctrl-C
    stops this process at once.

    Raises:
        ConnectionError: when another process is lost; names the lost rank where known.
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
            strategy.on_demand.abandon()
            strategy.stop_watching()


@contextlib.contextmanager
def alone(strategy: KerasRunner) -> Iterator[None]:
    """Surrounds a run of one process: an interruption leaves no round of local steps open."""
    with files.restored(strategy):
        try:
            yield
        except BaseException:
            strategy.stop_watching()
            strategy.finish_rounds()
            raise


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
        if _Interruption.requested:  # too late to stop all
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, previous)
        _Interruption.requested = False


def raise_everywhere(processes: Processes, error: Exception | None, action: str) -> None:
    """Raises `error` in this process; an error of rank 0 is reported in all other processes too.

    Args:
        processes: the processes; all of them call this.
        error: this process' error; None if there was none.
        action: what rank 0 was about to do, for the message.

    Raises:
        RuntimeError: in the other processes, when rank 0 had an error.
    """
    own = f"{type(error).__name__}: {error}" if error else ""
    (message, *_) = processes.all_gather_texts(own)
    if error:
        raise error
    if message:
        raise RuntimeError(f"Rank 0 could not {action}. Its error was: {message}")


def _seconds_between(seconds: float) -> float:
    """The seconds between questions that take `seconds`."""
    wanted = max(_SECONDS_BETWEEN_QUESTIONS, _TIMES_A_QUESTION * seconds)
    return min(wanted, _MOST_SECONDS_BETWEEN_QUESTIONS)


class Questions:
    """Asks the other processes now and then whether someone pressed Ctrl-C.

    All processes ask at the same steps, about one second apart; up to 30 seconds where a question
    takes more than 10 ms. Each answer includes how long the steps and the last question took, and
    from the answers all processes compute the same next step.

    Args:
        processes: the processes.
    """

    def __init__(self, processes: Processes):
        self._processes = processes
        self._steps_between = 1
        self._steps_left = 1
        self._asked_at = time.monotonic()
        self._asking = 0

    def start_again(self) -> None:
        """Measures the time of steps anew; called by all processes before other kinds of steps."""
        self._steps_between = self._steps_left = 1
        self._asked_at = time.monotonic()

    def ask_now_and_then(self) -> bool:
        """Asks if it is time to; called by all processes before each step.

        Returns:
            Whether it is time for the work that is due about as often; the same in all processes.

        Raises:
            KeyboardInterrupt: in all processes, when Ctrl-C was pressed in one.
            RuntimeError: when another process does something else, instead of a step.
        """
        self._steps_left -= 1
        if self._steps_left > 0:
            return False
        began = time.monotonic()
        # Two numbers, as wherever processes meet.
        both = int(1000 * (began - self._asked_at)) * _HIGH + self._asking
        rows = self._processes.all_gather([int(_Interruption.requested), both])
        self._asking = int(1000 * (time.monotonic() - began))
        self._check_answers(rows[:, 0].tolist())
        if rows[:, 0].any():
            ranks = [rank for rank, requested in enumerate(rows[:, 0]) if requested]
            raise KeyboardInterrupt(f"Ctrl-C in rank {', '.join(map(str, ranks))}")
        steps, questions = rows[:, 1] // _HIGH, rows[:, 1] % _HIGH
        seconds_per_step = max(int(steps.max()), 1) / 1000 / self._steps_between
        # Whoever asks last waits for nobody.
        seconds = _seconds_between(int(questions.min()) / 1000)
        wanted = int(seconds / seconds_per_step)
        self._steps_between = min(max(wanted, 1), 2 * self._steps_between)
        self._steps_left = self._steps_between
        self._asked_at = time.monotonic()
        return bool(steps.max() > 500 * seconds)

    @staticmethod
    def _check_answers(answers: list[int]) -> None:
        others = [rank for rank, answer in enumerate(answers) if answer not in (0, 1)]
        if others:
            raise RuntimeError(
                "Another rank does something else where this one begins a step. If a callback "
                "saves, loads or evaluates the model in the middle of an epoch, or ends a round of "
                "local steps, it must do so in all ranks, after the same batch. With `local` the "
                "ranks have no one model there, so no rank can save it alone: save at the end of "
                f"an epoch, or in all ranks. Received: something else in ranks {others}"
            )
