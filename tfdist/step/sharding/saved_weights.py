"""Saving and loading of weights of which each replica has a part, where several processes do so.

A file has whole weights, in Keras' layout. Before the first process writes, the others send it
their parts, one weight after the other, and it keeps them in a temporary file. After the first
process has read a file, it sends the whole weights, and each process keeps its parts. In a callback
it reads alone, and sends a weight when all read the weight, or after the callbacks.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.step.model_optimizers import optimizers_of
from tfdist.step.replica_rows import Entry
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.read_together import share
from tfdist.step.spool import Spool

_states: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class PartsOfWeights(ReplicaState):
    """The weights of a model of which each replica has its part.

    Made in the strategy's scope.

    Args:
        model: the model.
        variables: its weights that are in parts.
    """

    def __init__(self, model: keras.Model, variables: Sequence[compat.ShardedVariable]):
        super().__init__("weights")
        self._model = weakref.ref(model)
        self.variables_in_parts = tuple(variables)
        self._has_read = False

    def entries(self) -> list[Entry]:
        """The parts."""
        return [
            Entry(compat.stored(variable), [(str(number), ..., variable.parts.part_shape)])
            for number, variable in enumerate(self.variables_in_parts)
        ]

    def position(self) -> Any:
        """The numbers of updates, and of weights that were set."""
        model = self._model()
        optimizers = optimizers_of(model).values() if model is not None else ()
        updates = [int(o.iterations.numpy()) for o in optimizers if o.built]
        return updates, self.times_set()

    def times_set(self) -> int:
        """How often weights were set from outside of steps."""
        return sum(variable.times_set for variable in self.variables_in_parts)

    @contextlib.contextmanager
    def at_hand(self) -> Iterator[None]:
        """In this context the process reads whole weights without the others; as one writes."""
        if not self.several_processes:
            yield
            return
        arrays = Spool()
        _, rows = self._rows_to_save()
        try:
            for variable in self.variables_in_parts:
                parts = variable.parts
                arrays.append(parts.array_of_parts([next(rows) for _ in range(parts.replicas)]))
        finally:
            for _ in rows:
                pass  # the other processes iterate over all rows, so this one must too
        for number, variable in enumerate(self.variables_in_parts):
            variable.at_hand = functools.partial(arrays.__getitem__, number)
        try:
            yield
        finally:
            for variable in self.variables_in_parts:
                variable.at_hand = None

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """In this context whole weights that are set are kept for `share`; as one process reads."""
        if not self.several_processes:
            yield
            return
        self._has_read, arrays = True, Spool()
        for variable in self.variables_in_parts:
            variable.takes = functools.partial(_take, arrays, variable)
        try:
            yield
        finally:
            for variable in self.variables_in_parts:
                variable.takes = None

    @property
    def is_new(self) -> bool:
        """Whether this process has read a file that the others have not."""
        return self._has_read or any(self._read_alone())

    def _read_alone(self) -> list[bool]:
        """Which weights this process alone has."""
        return [variable.read_alone is not None for variable in self.variables_in_parts]

    def share_weights(self) -> None:
        """Gives all processes their parts of what only the first one has read; called by all."""
        if not self.several_processes:
            return
        chosen = self._processes.all_gather([*map(int, self._read_alone())])[0]
        for variable, is_read in zip(self.variables_in_parts, chosen):
            if is_read:
                share(self._strategy, variable)

    def share(self) -> None:
        """As `share_weights`; then all processes have the same."""
        self.share_weights()
        self.settle()

    def settle(self) -> None:
        """Notes that all processes have read the same; called by all."""
        self._has_read = False
        for variable in self.variables_in_parts:
            variable.read_alone = None
        super().settle()

    def save_own_variables(self, store: dict) -> None:
        """Writes nothing: the layers write whole weights."""

    def load_own_variables(self, store: dict) -> None:
        """Reads nothing: the layers read whole weights."""


def _take(arrays: Spool, variable: compat.ShardedVariable, array: np.ndarray) -> None:
    variable.read_alone = functools.partial(arrays.__getitem__, len(arrays))
    arrays.append(array)


def weights_in_parts(model: keras.Model) -> PartsOfWeights | None:
    """The weights of `model` that are in parts; None if there are none."""
    variables = [variable for variable in model.variables if compat.is_sharded(variable)]
    if not variables:
        return None
    known = _states.get(model)
    if known is None or [*map(id, known.variables_in_parts)] != [*map(id, variables)]:
        with tf.init_scope(), model.distribute_strategy.scope():
            known = _states[model] = PartsOfWeights(model, variables)
    return known


def at_hand(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """In this context this process reads the whole weights of `model` without the others."""
    state = weights_in_parts(model)
    return contextlib.nullcontext() if state is None else state.at_hand()


def reading(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """In this context this process reads the weights of `model`, and the others do not."""
    state = weights_in_parts(model)
    return contextlib.nullcontext() if state is None else state.reading()
