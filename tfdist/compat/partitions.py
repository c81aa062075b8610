"""Variables in parts, under TensorFlow's parameter servers."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.parameter_server_strategy_v2 import (
    ParameterServerStrategyV2Extended,
)
from tensorflow.python.distribute.sharded_variable import ShardedVariable

from tfdist.compat.initial_values import InitialValue, initial_value
from tfdist.compat.registry import BOTH, READ, TENSORFLOW, WRITTEN, overrides, touch
from tfdist.compat.row_updates import RowsOfVariable, in_pieces
from tfdist.structures import Structure, Variable

_SAVING: dict[str, str] = {
    "why": "a partitioned variable is saved as a whole: Keras needs its value as an array, and "
    "TensorFlow's checkpoints of Keras variables need tensors",
    "versions": BOTH,
    "instead": "the same methods in TensorFlow's own class",
}
_SHARDED = "tensorflow.python.distribute.sharded_variable:ShardedVariable"
_NUMPY = touch(_SHARDED, "numpy", READ, "self", **_SAVING)
_ASSIGN = touch(_SHARDED, "assign", READ, "self", "value", **_SAVING)
_WHOLE = touch(
    *(_SHARDED, "_sharded_container", READ),
    why="a part of a variable is updated with the state of the whole variable",
    versions=TENSORFLOW,
    instead="a public link from a part to the whole variable",
)
_CONVERSION_PRIORITY = 50  # before TensorFlow's own, which is 100


@overrides("_serialize_to_tensors", "_restore_from_tensors", **_SAVING)
class PartitionedVariable(ShardedVariable):
    """A `ShardedVariable`, which TensorFlow keeps in parts, that is saved as one whole variable.

    Attributes:
        parts: Keras variables for the parts; empty until they are needed.
    """

    def __init__(self, variables: list[tf.Variable], name: str):
        super().__init__(variables, name=name)
        self.parts: list[keras.Variable] = []

    def __array__(self, dtype: tf.DType | str | None = None, copy: bool | None = None) -> Any:
        del copy
        value = _NUMPY.of(self)()
        return value.astype(dtype, copy=False) if dtype is not None else value

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return {"VARIABLE_VALUE": tf.convert_to_tensor(self)}

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return _ASSIGN.of(self)(restored_tensors["VARIABLE_VALUE"])


def _joined(
    variable: PartitionedVariable,
    dtype: tf.DType | str | None = None,
    name: Any = None,
    as_ref: bool = False,
) -> tf.Tensor:
    del name, as_ref
    values = [tf.convert_to_tensor(part, dtype) for part in variable.variables]
    # Joined on the chief, which is where a whole value is wanted.
    with tf.device("/device:CPU:0"):
        return tf.concat(values, axis=0)


tf.register_tensor_conversion_function(PartitionedVariable, _joined, _CONVERSION_PRIORITY)


def place_of_part(variable: tf.Variable) -> int | None:
    """The index of `variable` among the parts of a `PartitionedVariable`; None if it is no part."""
    whole = whole_of(variable)
    if whole is variable:
        return None
    return next(place for place, part in enumerate(whole.variables) if part is variable)


def whole_of(variable: Variable) -> Any:
    """The variable that `variable` is a part of, or rows of a part of, or itself."""
    variable = variable.variable if isinstance(variable, RowsOfVariable) else variable
    container = getattr(variable, _WHOLE.name, None)
    return variable if container is None else container()


_PARTITIONER = touch(
    "tensorflow.python.distribute.parameter_server_strategy_v2:ParameterServerStrategyV2Extended",
    *("_variable_partitioner", WRITTEN),
    why="TensorFlow would partition every variable, even counters, seeds and metrics, which gains "
    "nothing",
    versions=TENSORFLOW,
    instead="a partitioner that is told which variable it partitions",
)


_COUNT = touch(
    "tensorflow.python.distribute.parameter_server_strategy_v2:ParameterServerStrategyV2Extended",
    *("_variable_count", WRITTEN),
    why="single numbers, such as counters and the sums of metrics, belong to one server: an update "
    "needs all of them, and they take no room. Other variables go to the server that has the "
    "fewest bytes. TensorFlow gives variables to the servers in turn, so with two servers one has "
    "all kernels of layers and the other all biases",
    versions=TENSORFLOW,
    instead="a public way to choose the parameter server of a variable",
)
_SERVERS = touch(
    "tensorflow.python.distribute.parameter_server_strategy_v2:ParameterServerStrategyV2Extended",
    *("_num_ps", READ),
    why="to choose one of the servers for a variable",
    versions=TENSORFLOW,
    instead="a public way to choose the parameter server of a variable",
)


def server(task: int) -> str:
    """The device of a parameter server."""
    return f"/job:ps/replica:0/task:{task}/device:CPU:0"


@overrides(
    *("_create_variable", "_update"),
    why="each part of a variable is updated on its own parameter server, and the optimizer keeps "
    "the state for this part there too",
    versions=TENSORFLOW,
    instead="public hooks for making and updating variables",
)
class ParameterServerExtended(ParameterServerStrategyV2Extended):
    """TensorFlow's parameter server strategy; optimizers can update its partitioned variables.

    TensorFlow itself cannot place a variable beside the parts of another variable. An optimizer's
    state would then be on other servers than the parts that it belongs to.

    Args:
        strategy: the `tf.distribute.Strategy` that this extends.
        cluster_resolver: as in `tf.distribute.ParameterServerStrategy`.
        variable_partitioner: as in `tf.distribute.ParameterServerStrategy`.
    """

    def __init__(self, *arguments: Any):
        self._bytes: collections.Counter[str] = collections.Counter()
        super().__init__(*arguments)

    def updating_part(
        self, place: int, start: tf.Tensor | None = None, size: tf.Tensor | None = None
    ) -> contextlib.AbstractContextManager:
        """The context in which part number `place` of a variable is updated.

        Args:
            place: the number of the part.
            start: the first row that is updated; None for the whole part.
            size: the number of rows.
        """
        raise NotImplementedError

    def divided(self, argument: Structure, variable: PartitionedVariable) -> list[Any]:
        """What the update of each part of `variable` gets for an argument of the whole update."""
        raise NotImplementedError

    def made(self, variables: list[tf.Variable]) -> None:
        """Called with the parts of a new variable; a variable without parts is its only part."""

    def _create_variable(self, next_creator: Callable, **kwargs: Any) -> Any:
        variable = self._created(next_creator, **kwargs)
        parts = variable.variables if isinstance(variable, PartitionedVariable) else [variable]
        for part in parts:
            self._bytes[part.device] += (part.shape.num_elements() or 0) * part.dtype.size
        self.made(parts)
        return variable

    def _created(self, next_creator: Callable, **kwargs: Structure) -> Structure:
        create = super()._create_variable
        reference = kwargs.get("colocate_with")
        name = kwargs.get("name") or "Variable"
        initial = initial_value(kwargs.get("initial_value"), kwargs.get("dtype"))
        if isinstance(reference, PartitionedVariable):
            parts = []
            start = 0
            for place, part in enumerate(reference.variables):
                of_part = {
                    **kwargs,
                    "initial_value": _rows_of(initial, start, part.shape),
                    "colocate_with": part,
                    "shape": part.shape,
                    "name": f"{name}/part_{place}",
                }
                parts.append(create(next_creator, **of_part))
                start += part.shape[0]
            return PartitionedVariable(parts, name)
        partitioner = _PARTITIONER.of(self)
        if not kwargs.get("trainable", True):
            _PARTITIONER.write(self, None)
        elif isinstance(initial, InitialValue) and partitioner is not None:
            # With a shape, TensorFlow asks for each part by itself.
            of_parts = {"initial_value": initial, "shape": initial.shape, "dtype": initial.dtype}
            kwargs = {**kwargs, **of_parts}
        _COUNT.write(self, 0 if _is_number(initial) else self._lightest())
        try:
            variable = create(next_creator, **kwargs)
        finally:
            _PARTITIONER.write(self, partitioner)
        if not isinstance(variable, ShardedVariable):
            return variable
        return PartitionedVariable(variable.variables, name)

    def _lightest(self) -> int:
        """The number of the server that has the fewest bytes; the first of several such servers."""
        places = range(_SERVERS.of(self))
        return min(places, key=lambda place: self._bytes[server(place)])

    def _update(self, var: Structure, fn: Callable, args: tuple, kwargs: dict, group: bool) -> Any:
        if isinstance(var, PartitionedVariable):
            own = [self.divided(argument, var) for argument in args]
            return [
                self._update(part, fn, tuple(parts[place] for parts in own), kwargs, group)
                for place, part in enumerate(var.variables)
            ]
        place = place_of_part(var)
        if place is None:
            return super()._update(var, fn, args, kwargs, group)
        update = in_pieces(fn, functools.partial(self.updating_part, place))
        with self.updating_part(place):
            return super()._update(var, update, args, kwargs, group)


def _is_number(initial: Structure) -> bool:
    """Whether a variable with this first value is a single number."""
    if isinstance(initial, InitialValue):
        return len(initial.shape) == 0
    return not callable(initial) and tf.TensorShape(np.shape(initial)).rank == 0


def _rows_of(value: Structure, start: int, shape: tf.TensorShape) -> Callable[[], tf.Tensor]:
    if isinstance(value, InitialValue):
        return lambda: value(shape, (start, *[0] * (shape.rank - 1)))
    return lambda: (value() if callable(value) else value)[start : start + shape[0]]
