"""How Keras creates variables, and how TensorFlow's distributed variables are read."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.graphs import change_of
from tfdist.compat.registry import ADDED, BOTH, READ, REPLACED, TENSORFLOW, touch
from tfdist.structures import Structure, Variable

_INITIALIZE = touch(
    *("keras.src.backend.tensorflow.core:Variable", "_initialize", REPLACED, "self", "value"),
    why="a layer or an optimizer may be built in the first step of a user's own loop. Replicas "
    "and processes exchange the initial values, but inside the traced function these values do "
    "not exist yet",
    versions=BOTH,
    instead="a Keras that makes its variables outside of traced functions",
)


def hook_variables(is_lifted: Callable[[tf.distribute.Strategy], bool]) -> None:
    """Makes Keras create variables outside of the function that is being traced.

    Only under strategies for which `is_lifted` returns True.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def _initialize(self: keras.Variable, value: Structure) -> None:
            inside = not tf.executing_eagerly() and not isinstance(value, tf.Variable)
            if not inside or not is_lifted(tf.distribute.get_strategy()):
                original(self, value)
                return
            if not callable(value):
                value = _constant(self, value)
            with tf.init_scope():
                original(self, value)

        return _initialize

    _INITIALIZE.replace(make)


def _constant(variable: Variable, value: Structure) -> Any:
    number = tf.get_static_value(value)
    if number is None:
        raise ValueError(
            "A variable that is made inside a `tf.function` needs an initial value that "
            "does not depend on the function's data. Make the variable before, in "
            f"`strategy.scope()`. Received: {variable.path} with the initial value {value}"
        )
    return number


_DIRECT_ASSIGN = touch(
    *("keras.src.backend.tensorflow.core:Variable", "_direct_assign", REPLACED, "self", "value"),
    why="workers that do not wait for each other count with the same variables. Keras reads a "
    "counter and assigns the sum, which loses what others have added in between",
    versions=BOTH,
    instead="a Keras that adds with `assign_add`, which is one operation",
)


def hook_additions(is_shared: Callable[[tf.distribute.Strategy], bool]) -> None:
    """Makes functions add to a Keras variable where they would assign its value plus a change.

    Only under strategies for which `is_shared` returns True, and only where the graph shows that
    the assigned value is such a sum or difference.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def _direct_assign(self: keras.Variable, value: tf.Tensor) -> None:
            if tf.executing_eagerly() or not is_shared(tf.distribute.get_strategy()):
                original(self, value)
                return
            variable = self.value
            found = change_of(value, variable) if isinstance(variable, tf.Variable) else None
            if found is None:
                original(self, value)
                return
            kind, change = found
            add = variable.assign_add if kind == "+" else variable.assign_sub
            add(tf.broadcast_to(change, variable.shape))

        return _direct_assign

    _DIRECT_ASSIGN.replace(make)


_DISTRIBUTED = "tensorflow.python.distribute.values:DistributedVariable"
_AS_NUMBER: dict[str, str] = {
    "why": "callbacks call `float(model.optimizer.learning_rate)`. Distributed variables have "
    "`numpy`, but not what `float` needs",
    "versions": TENSORFLOW,
    "instead": "the same methods in TensorFlow, whose variables on one device have them",
}
_NUMPY = touch(_DISTRIBUTED, "numpy", READ, "self", **_AS_NUMBER)
_ARRAY, _INT, _FLOAT, _COMPLEX = (
    touch(_DISTRIBUTED, name, ADDED, **_AS_NUMBER)
    for name in ("__array__", "__int__", "__float__", "__complex__")
)


def install() -> None:
    """Lets Python and NumPy read a distributed variable like a variable on one device."""

    def as_array(
        self: tf.Variable, dtype: tf.DType | str | None = None, copy: bool | None = None
    ) -> Any:
        del copy
        return np.asarray(_NUMPY.of(self)(), dtype)

    _ARRAY.add(as_array)
    _INT.add(lambda self: int(_NUMPY.of(self)()))
    _FLOAT.add(lambda self: float(_NUMPY.of(self)()))
    _COMPLEX.add(lambda self: complex(_NUMPY.of(self)()))
