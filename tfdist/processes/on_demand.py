"""What only the other processes have: they send it when a callback saves in the first one alone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence

from tfdist.engines.processes import Processes
from tfdist.processes.saving import END, tell
from tfdist.step.replica_state import ReplicaState


class OnDemand:
    """Lets the first process save alone while callbacks run.

    The others send their rows only if it does. A thread of theirs sends them, beside whatever their
    own callbacks do meanwhile, such as `evaluate`.

    Args:
        processes: the processes of a strategy.
    """

    def __init__(self, processes: Processes):
        self._processes = processes.aside
        self._states: Sequence[ReplicaState] = ()
        self._active = False
        self._sender: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, states: Sequence[ReplicaState]) -> None:
        """Begins to send the rows of `states` when asked; called by all between steps."""
        self._states = states
        self._active = True
        for number, state in enumerate(states):
            state.hold(ask=functools.partial(self._ask, number))
        # After an error in callbacks, the thread of that time may still wait.
        if not self._processes.is_chief and not (self._sender and self._sender.is_alive()):
            self._sender = threading.Thread(target=self._send, daemon=True)
            self._sender.start()

    def end(self) -> None:
        """Ends what `begin` began, if anything; called by all.

        Raises:
            ConnectionError: when another process is lost; names the lost rank where known.
        """
        if not self._active:
            return
        self._active = False
        if self._sender:
            self._sender.join()
        elif self._processes.is_chief:
            tell(self._processes, END)
        error, self._error = self._error, None
        if error:
            raise error

    def _ask(self, number: int) -> None:
        """Fetches the rows of a state; in the first process."""
        tell(self._processes, number)
        self._states[number].copy_rows(self._processes)

    def _send(self) -> None:
        """Sends rows until the first process needs no more; in a thread of the others."""
        try:
            while (number := tell(self._processes, END)) != END:
                self._states[number].copy_rows(self._processes)
        except BaseException as error:
            self._error = error
