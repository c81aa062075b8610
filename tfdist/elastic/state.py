"""The variables that operations change: what they were at one moment, and where they come from."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import tensorflow as tf


class Made:
    """The variables that this process has made in the scope of its strategies.

    They are numbered as they are made, so a variable has the same number in all ranks. Variables
    that nobody uses any more are forgotten, which may happen at another time in each rank.
    """

    def __init__(self) -> None:
        self._alive: weakref.WeakValueDictionary[int, tf.Variable] = weakref.WeakValueDictionary()
        self.count = 0
        self._apart: list[Callable[[], Iterable[tf.Variable]]] = []

    def keep_apart(self, variables: Callable[[], Iterable[tf.Variable]]) -> None:
        """Says which of the variables each rank has for itself, though one that joins needs them.

        Args:
            variables: returns them.
        """
        self._apart.append(variables)

    def kept_apart(self) -> dict[int, tf.Variable]:
        """These variables, by number."""
        ids = {id(variable) for variables in self._apart for variable in variables()}
        return {n: v for n, v in self.alive().items() if id(v) in ids} if ids else {}

    def note(self, variable: tf.Variable) -> None:
        """Numbers a variable of this process, which belongs to no strategy itself."""
        self._alive[self.count] = variable
        self.count += 1

    def alive(self) -> dict[int, tf.Variable]:
        """The variables that are still used, by number, rising."""
        return dict(sorted(self._alive.items()))

    def scalars(self) -> list[tf.Variable]:
        """Those with one number, such as counters."""
        return [variable for variable in self._alive.values() if variable.shape.rank == 0]


class Snapshot:
    """The values of variables at one moment.

    The values are the variables' own buffers. TensorFlow copies such a buffer when something else
    than a new value is written to it, so only variables that change in place take twice the memory.

    Args:
        variables: plain variables of this process, by number.

    Attributes:
        values: the values, by number.
    """

    def __init__(self, variables: Mapping[int, tf.Variable]):
        self._variables = dict(variables)
        found = _reader(tuple(_Handle(v.handle, v.dtype) for v in self._variables.values()))()
        self.values: dict[int, tf.Tensor] = dict(zip(self._variables, found))

    def restore(self) -> None:
        """Gives the variables their values back."""
        for number, variable in self._variables.items():
            variable.assign(self.values[number])


class _Handle(NamedTuple):
    """Where a variable is. It does not keep the variable itself alive."""

    tensor: tf.Tensor
    dtype: tf.DType

    def __hash__(self) -> int:
        return id(self.tensor)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and self.tensor is other.tensor


# All variables, those of a window, those of each rank itself, those of a round, and its metrics.
@functools.lru_cache(maxsize=6)
def _reader(handles: tuple[_Handle, ...]) -> Callable[[], list[tf.Tensor]]:
    """A function that reads variables in one call, many times faster than one by one."""
    if not handles:
        return lambda: []

    def read() -> list[tf.Tensor]:
        return [
            tf.raw_ops.ReadVariableOp(resource=tensor, dtype=dtype) for tensor, dtype in handles
        ]

    return tf.function(read, autograph=False).get_concrete_function()
