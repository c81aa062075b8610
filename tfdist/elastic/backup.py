"""The state of a rank that waits before a step, for a job that goes on from it later."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.elastic.facts import FACTS, facts_of
from tfdist.elastic.following import CannotJoinError
from tfdist.elastic.handover import Belongings
from tfdist.elastic.operations import Operation
from tfdist.elastic.residuals import Residuals
from tfdist.elastic.state import Made
from tfdist.elastic.windows import Windows


class Window(NamedTuple):
    """Accumulated gradients that wait for an update.

    Attributes:
        totals: as in `windows.Window`.
        start: the values of variables at its beginning, by number.
    """

    totals: Sequence[np.ndarray]
    start: Mapping[int, np.ndarray]


class State(NamedTuple):
    """What a rank has before an operation.

    Attributes:
        completed: how many operations it has completed.
        facts: what it is about to do.
        values: the values of variables, by number.
        windows: the open windows, by number.
        belongings: what its callbacks have found out.
    """

    completed: int
    facts: Sequence[int]
    values: Mapping[int, np.ndarray]
    windows: Mapping[int, Window]
    belongings: Any


class Backup:
    """Writes and reads states.

    Args:
        made: the variables of all models.
        windows: the accumulated gradients that wait for an update.
        residuals: what each rank keeps for itself; not a part of a state.
        belongings: of the callbacks.
    """

    def __init__(self, made: Made, windows: Windows, residuals: Residuals, belongings: Belongings):
        self._made = made
        self._windows = windows
        self._residuals = residuals
        self._belongings = belongings

    def state(self, completed: int, operation: Operation) -> bytes:
        """The state of this rank.

        Args:
            completed: how many operations it has completed.
            operation: what it is about to do.
        """
        own = {id(variable) for variable in self._windows.own()}
        residuals = self._residuals.variables()
        alive = [(n, v) for n, v in self._made.alive().items() if n not in residuals]
        windows = {}
        for number in range(self._windows.made):
            window = self._windows.get(number)
            if window is not None:
                start = {n: v.numpy() for n, v in window.start.values.items() if n not in residuals}
                windows[number] = Window(window.totals, start)
        found = State(
            completed,
            facts_of(operation, self._made, self._windows, self._windows.made),
            {number: variable.numpy() for number, variable in alive if id(variable) not in own},
            windows,
            self._belongings.given(),
        )
        return pickle.dumps(found)

    def restore(self, state: State, operation: Operation) -> None:
        """Gives this rank a state.

        Args:
            state: the state.
            operation: what this rank is about to do.

        Raises:
            CannotJoinError: when that is not what was to come next.
        """
        own = facts_of(operation, self._made, self._windows, self._windows.made)
        differ = [name for name, a, b in zip(FACTS, own, state.facts) if a != b]
        has_targets = bool(state.facts[FACTS.index("targets")])
        if differ and not (differ == ["inputs"] and has_targets):  # inputs may be augmented
            raise CannotJoinError(
                "The script is not where it was when its state was kept (--backup-dir). It must do "
                "the same each time that it runs, with the same data in the same order: call "
                "`keras.utils.set_random_seed` first. To begin anew, remove the file in that "
                f"folder. Received: other {', '.join(differ)}"
            )
        variables = self._made.alive()
        for number, kept in state.windows.items():
            window = self._windows.get(number)
            _assign(variables, kept.start)
            if window is not None:
                window.begin_from_now(kept.totals)
        _assign(variables, state.values)
        self._belongings.take(state.belongings)


def _assign(variables: Mapping[int, tf.Variable], values: Mapping[int, np.ndarray]) -> None:
    for number, value in values.items():
        if number in variables:
            variables[number].assign(value)


def read(data: bytes) -> State:
    """The state that `Backup.state` has returned."""
    return pickle.loads(data)
