"""Optimizers update a partitioned variable part by part, each on its parameter server."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.partitions import parts_of, split
from tfdist.parameter_server.snapshots.variables import MadeVariables
from tfdist.structures import Structure

_optimizers = keras.optimizers
_ELEMENTWISE = (
    _optimizers.SGD,
    _optimizers.Adam,
    _optimizers.Nadam,
    _optimizers.Adamax,
    _optimizers.RMSprop,
    _optimizers.Adagrad,
    _optimizers.Adadelta,
    _optimizers.Lion,
    _optimizers.Ftrl,
)


class PartitioningExtended(compat.ParameterServerExtended):
    """Lets an optimizer update a part of a variable with the same part of its own state.

    Args:
        arguments: as for TensorFlow's class.

    Attributes:
        variables: the variables that were made.
    """

    def __init__(self, *arguments: object):
        self.variables = MadeVariables()
        super().__init__(*arguments)

    def made(self, variables: list[tf.Variable]) -> None:
        """Notes new variables or parts."""
        self.variables.note(variables)

    def updating_part(
        self, place: int, start: tf.Tensor | None = None, size: tf.Tensor | None = None
    ) -> contextlib.AbstractContextManager:
        """In this context, partitioned Keras variables stand for their `place`-th parts.

        Args:
            place: the number of the part.
            start: the first row of the part that the variables stand for; None for all rows.
            size: the number of rows.
        """
        return _OnePart(place, start, size)

    def divided(self, argument: Structure, variable: compat.PartitionedVariable) -> list[Any]:
        """The parts of a gradient or another `argument` of the variable's shape; else itself."""
        parts = variable.variables
        is_gradient = isinstance(argument, tf.IndexedSlices)  # whose shape may not be known
        if is_gradient or getattr(argument, "shape", None) == variable.shape:
            return split(argument, parts)
        return [argument] * len(parts)


class _OnePart(keras.StatelessScope):
    def __init__(self, place: int, start: tf.Tensor | None, size: tf.Tensor | None):
        super().__init__(initialize_variables=False)
        self._place = place
        self._rows = None if start is None else (start, size)

    def get_current_value(
        self, variable: keras.Variable
    ) -> tf.Tensor | tf.Variable | compat.RowsOfVariable | None:
        with compat.outside_stateless_scope():
            value = variable.value
        if not isinstance(value, compat.PartitionedVariable):
            outer = self.original_scope
            return None if outer is None else outer.get_current_value(variable)
        part = value.variables[self._place]
        return part if self._rows is None else compat.RowsOfVariable(part, *self._rows)

    def add_update(self, update: tuple) -> None:
        variable, value = update
        current = self.get_current_value(variable)
        if current is None:
            with compat.outside_stateless_scope():
                variable.assign(value)
        else:
            current.assign(value)


def constrain(variables: Sequence[keras.Variable]) -> None:
    """Applies the constraints of partitioned variables, which may need all of their parts."""
    for variable in variables:
        if variable.constraint is not None and len(parts_of(variable)) > 1:
            variable.assign(variable.constraint(variable))


def check_optimizer(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> None:
    """Raises ValueError for an optimizer that `fit` cannot let update variables part by part."""
    check_elementwise(optimizer, variables)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    partitioned = _partitioned(variables)
    if partitioned and optimizer.clipnorm is not None:
        raise ValueError(
            "`clipnorm` needs the norm of a whole gradient, of which a parameter server has a part "
            "only. Use `global_clipnorm` or `clipvalue`, or no `variable_partitioner`. "
            f"Received: {type(optimizer).__name__} with clipnorm={optimizer.clipnorm}, "
            f"partitioned {partitioned}"
        )


def check_elementwise(
    optimizer: keras.optimizers.Optimizer, variables: Sequence[keras.Variable]
) -> None:
    """Raises ValueError if the update of an element may depend on others, in other parts."""
    partitioned = _partitioned(variables)
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    update_steps = {optimizer_class.update_step for optimizer_class in _ELEMENTWISE}
    if partitioned and type(optimizer).update_step not in update_steps:
        known = ", ".join(optimizer_class.__name__ for optimizer_class in _ELEMENTWISE)
        raise ValueError(
            "Partitioned variables are updated part by part, for which the update of an element "
            f"must not depend on others. Use one of the optimizers {known}, or no "
            f"`variable_partitioner`. Received: optimizer {type(optimizer).__name__}, "
            f"partitioned {partitioned}"
        )


def _partitioned(variables: Sequence[keras.Variable]) -> list[str]:
    """The paths of the variables that have several parts."""
    with compat.outside_stateless_scope():
        values = [getattr(variable, "value", variable) for variable in variables]
    return [
        variable.path
        for variable, value in zip(variables, values)
        if isinstance(value, compat.PartitionedVariable) and len(value.variables) > 1
    ]


def _checked(
    optimizer: keras.optimizers.Optimizer, grads: Structure, variables: Structure
) -> Structure:
    """The gradients for a plain optimizer in a user's own loop; see `compat.hook_apply`."""
    if variables is None and optimizer.built:
        variables = compat.variables_to_build(optimizer)
    check_elementwise(optimizer, variables or ())
    return grads


compat.hook_apply(_checked)
