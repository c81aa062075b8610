"""Runs exchanges of local steps in a thread, beside the steps that follow."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import tensorflow as tf

from tfdist.step.local_rounds import LocalRounds


class Exchanging:
    """The exchanges that run beside the steps of a strategy, one after the other.

    What an exchange comes to does not depend on when it runs. So it need not run here: what is not
    exchanged yet is exchanged where it is merged. Whether it runs here is decided by the number of
    updates, so all processes decide alike.
    """

    def __init__(self) -> None:
        self._last: _Exchange | None = None
        self._under_way: dict[LocalRounds, _Exchange] = {}

    def begin(self, rounds: LocalRounds, most: int) -> None:
        """Begins the exchange of what was sent, if it can end before it is merged.

        Called between two steps, in all processes.

        Args:
            rounds: where the replicas meet.
            most: how many updates there may be until this is called again.
        """
        turns = rounds.overlapping
        if turns is None or rounds in self._under_way:
            return
        number, left = turns.waiting()
        if number is None or left <= most:
            return
        function = rounds.exchange_of(number)
        self._last = self._under_way[rounds] = _Exchange(function, self._last)

    def wait_before_steps(self, rounds: LocalRounds, most: int) -> None:
        """Waits for the exchange of what the next steps may merge.

        Args:
            rounds: where the replicas meet.
            most: how many updates there may be until this is called again.
        """
        turns = rounds.overlapping
        if turns is not None and rounds in self._under_way and turns.waiting()[1] <= most:
            self.wait(rounds)

    def wait(self, rounds: LocalRounds) -> None:
        """Waits for the exchange that is under way, if there is one.

        If waiting is interrupted, or the exchange has failed, it stays under way: then nothing may
        be merged, and the next call waits, or raises, again.

        Raises:
            Exception: that of the exchange.
        """
        exchange = self._under_way.get(rounds)
        if exchange is not None:
            exchange.wait()
            del self._under_way[rounds]

    def is_under_way(self, rounds: LocalRounds) -> bool:
        """Whether an exchange was begun, and has not ended well for all that is known here."""
        return rounds in self._under_way


class _Exchange:
    """One exchange, in a thread.

    A thread that waits for a lost process must not keep this one alive, so it is a daemon.

    Args:
        function: the exchange.
        after: the exchange before; None for none.

    Attributes:
        has_ended: whether it has ended. A `join` that is interrupted may take a thread for ended
            that is not (before Python 3.13).
    """

    def __init__(self, function: Callable[[], object], after: _Exchange | None):
        self._error: BaseException | None = None
        self.has_ended = threading.Event()
        first = None if after is None else after.has_ended
        run = functools.partial(self._run, function, first)
        threading.Thread(target=run, daemon=True).start()

    def _run(self, function: Callable[[], object], after: threading.Event | None) -> None:
        try:
            if after is not None:
                after.wait()
            function()
        except BaseException as error:
            self._error = error
            # Nobody reads it if the steps fail first.
            tf.get_logger().error(
                "tfdist: an exchange beside the steps has failed: %s: %s",
                type(error).__name__,
                error,
            )
        finally:
            self.has_ended.set()

    def wait(self) -> None:
        """Returns when the exchange has ended, or raises its error."""
        self.has_ended.wait()
        if self._error is not None:
            raise self._error
