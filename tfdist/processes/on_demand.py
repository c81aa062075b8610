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
        self._states: list[ReplicaState] = []
        self._begun: list[int] = []  # for each phase that is under way: how many states were there
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def begin(self, states: Sequence[ReplicaState]) -> None:
        """Begins a phase, perhaps inside of another one; called by all between steps.

        Args:
            states: what the first process may save alone during the phase.
        """
        self._begun.append(len(self._states))
        asked = [state for state in states if state.has_rows()]
        if asked and not self._states:
            self._start()
        for state in states:
            if state in asked:
                self._states.append(state)
                ask = functools.partial(self._ask, self._states, len(self._states) - 1)
                state.hold(ask)
            else:
                state.hold()

    def end(self) -> None:
        """Ends the phase that began last; called by all.

        Raises:
            ConnectionError: when another process is lost; names the lost rank where known.
        """
        before = self._begun.pop()
        if before or not self._states:
            del self._states[before:]
            return
        self._states = []
        if self._processes.is_chief:
            tell(self._processes, END)
        elif self._thread is not None:
            self._thread.join()
        error, self._error = self._error, None
        if error:
            raise error

    def abandon(self) -> None:
        """Ends all phases that an error has left open, without waiting for the others."""
        for state in self._states:
            state.release()
        if self._states and self._processes.is_chief:
            self._run(functools.partial(tell, self._processes, END))
        self._states, self._begun = [], []

    def _start(self) -> None:
        """Begins to send, in the processes other than the first."""
        if self._thread is not None:
            self._thread.join()  # phases follow each other in all processes
        self._error = None
        if not self._processes.is_chief:
            self._run(functools.partial(self._send, self._states))

    def _run(self, function: functools.partial) -> None:
        self._thread = threading.Thread(target=function, daemon=True)
        self._thread.start()

    def _ask(self, states: list[ReplicaState], number: int) -> None:
        """Fetches the rows of a state; in the first process."""
        if states is not self._states or number >= len(states):
            raise RuntimeError(
                "The callbacks have ended during which rank 0 could save alone. Save with "
                "`model.save` or `model.save_weights` in all ranks. Received: rank 0 saves alone"
            )
        tell(self._processes, number)
        states[number].copy_rows(self._processes)

    def _send(self, states: list[ReplicaState]) -> None:
        """Sends rows until the first process needs no more; in a thread of the others."""
        try:
            while (number := tell(self._processes, END)) != END:
                states[number].copy_rows(self._processes)
        except BaseException as error:
            self._error = error
