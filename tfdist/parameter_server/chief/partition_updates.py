"""Optimizers update a partitioned variable part by part, each on its parameter server."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.partitions import parts_of

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
    """Lets an optimizer update a part of a variable with the same part of its own state."""

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


class _OnePart(keras.StatelessScope):
    def __init__(self, place: int, start: tf.Tensor | None, size: tf.Tensor | None):
        super().__init__(initialize_variables=False)
        self._place = place
        self._rows = None if start is None else (start, size)

    def get_current_value(
        self, variable: keras.Variable
    ) -> tf.Variable | compat.RowsOfVariable | None:
        with compat.outside_stateless_scope():
            value = variable.value
        if not isinstance(value, compat.PartitionedVariable):
            return None
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
    """Raises ValueError for an optimizer that cannot update variables part by part."""
    partitioned = [variable.path for variable in variables if len(parts_of(variable)) > 1]
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    if not partitioned:
        return
    update_steps = {optimizer_class.update_step for optimizer_class in _ELEMENTWISE}
    name = type(optimizer).__name__
    if type(optimizer).update_step not in update_steps:
        known = ", ".join(optimizer_class.__name__ for optimizer_class in _ELEMENTWISE)
        raise ValueError(
            "Partitioned variables are updated part by part, for which the update of an element "
            f"must not depend on others. Use one of the optimizers {known}, or no "
            f"`variable_partitioner`. Received: optimizer {name}, partitioned {partitioned}"
        )
    if optimizer.clipnorm is not None:
        raise ValueError(
            "`clipnorm` needs the norm of a whole gradient, of which a parameter server has a part "
            "only. Use `global_clipnorm` or `clipvalue`, or no `variable_partitioner`. "
            f"Received: {name} with clipnorm={optimizer.clipnorm}, partitioned {partitioned}"
        )
