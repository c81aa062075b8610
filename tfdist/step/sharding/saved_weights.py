"""Saving and loading of weights of which each replica has a part, where several processes do so.

A file has whole weights, in Keras' layout. Before the first process writes, the others send it
their parts, one weight after the other, and it keeps them in a temporary file. After the first
process has read a file, it sends the whole weights, and each process keeps its parts.
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
        self._read_arrays: Spool | None = None
        self._places: dict[int, int] = {}  # of the weights in it

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
                of_replicas = [next(rows) for _ in range(variable.parts.replicas)]
                arrays.append(variable.parts.array_of_parts(of_replicas))
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
        self._read_arrays, self._places = Spool(), {}
        for number, variable in enumerate(self.variables_in_parts):
            variable.takes = functools.partial(self._take, number)
        try:
            yield
        finally:
            for variable in self.variables_in_parts:
                variable.takes = None

    def _take(self, number: int, array: np.ndarray) -> None:
        assert self._read_arrays is not None
        self._places[number] = len(self._read_arrays)
        self._read_arrays.append(array)

    @property
    def is_new(self) -> bool:
        """Whether this process has read weights that the others have not."""
        return bool(self._places)

    def share(self) -> None:
        """Gives all processes their parts of what the first one has read; called by all."""
        if not self.several_processes:
            return
        own = [self._places.get(number, -1) for number in range(len(self.variables_in_parts))]
        places = self._processes.all_gather(own)[0].tolist()
        for variable, place in zip(self.variables_in_parts, places):
            if place < 0:
                continue
            dtype = variable.parts.dtype.as_numpy_dtype
            array = np.broadcast_to(np.zeros((), dtype), variable.parts.shape)
            if self._processes.is_chief and self._read_arrays is not None:
                array = self._read_arrays[place]
            (array,) = self._processes.broadcast([array], 0)
            variable.assign(array)
        self.settle()

    def settle(self) -> None:
        """Notes that all processes have read the same; called by all."""
        self._read_arrays, self._places = None, {}
        super().settle()

    def save_own_variables(self, store: dict) -> None:
        """Writes nothing: the layers write whole weights."""

    def load_own_variables(self, store: dict) -> None:
        """Reads nothing: the layers read whole weights."""


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
