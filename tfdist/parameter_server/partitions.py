"""Variables in parts: a `variable_partitioner` divides them among the parameter servers.

Steps, gradients and updates deal with the parts, each of which stays on its parameter server; the
model, the optimizer and files deal with the whole variable.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat

# Of a smaller table all rows are read: its bytes cost less than to ask for some of them.
_SMALL_BYTES = 64 * 1024

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


class Part(keras.Variable):
    """A part of a partitioned variable as a Keras variable.

    Args:
        variable: the whole one.
        place: which part of it.
    """

    def __init__(self, variable: keras.Variable, place: int):
        super().__init__(
            variable.value.variables[place],
            trainable=variable.trainable,
            aggregation=variable.aggregation,
            name=variable.name,
        )
        self._path_of_part = f"{variable.path}/part_{place}"

    @property
    def path(self) -> str:
        """The path of the whole variable and which part it is."""
        return self._path_of_part


def parts_of(variable: keras.Variable) -> list[keras.Variable]:
    """The parts of a partitioned variable, each time the same; of another one, itself."""
    value = variable.value
    if not isinstance(value, compat.PartitionedVariable):
        return [variable]
    if not value.parts:
        with tf.init_scope():
            value.parts = [Part(variable, place) for place in range(len(value.variables))]
    return value.parts


def parts_of_all(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """The parts of several variables, one after the other."""
    return [part for variable in variables for part in parts_of(variable)]


def whole(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """The value of a variable of which the parts have these."""
    return values[0] if len(values) == 1 else tf.concat(values, axis=0)


def is_small(variable: keras.Variable) -> bool:
    """Whether reading some rows costs as much as reading all."""
    return variable.shape.num_elements() * tf.as_dtype(variable.dtype).size <= _SMALL_BYTES


def lookup(values: Sequence[tf.Tensor], devices: Sequence[str], ids: Any) -> tf.Tensor:
    """Rows of a table, each read on the device that has it.

    Args:
        values: the parts of the table, of shapes (n_i, ...).
        devices: where they are.
        ids: integers of any shape; negative ones count from the end. For others outside of the
            table TensorFlow raises an error when the step runs.

    Returns:
        A tensor of the shape of `ids` and then that of a row.
    """
    sizes = [value.shape[0] for value in values]
    ids = tf.convert_to_tensor(ids)
    ids = tf.where(ids < 0, ids + tf.cast(sum(sizes), ids.dtype), ids)
    if len(values) == 1:
        with tf.device(devices[0]):
            return tf.gather(values[0], ids)
    flat = tf.reshape(ids, [-1])
    owners = _owners(flat, sizes)
    places = tf.dynamic_partition(tf.range(tf.size(flat)), owners, len(sizes))
    found = []
    for value, device, start, of_part in zip(values, devices, _starts(sizes), places):
        wanted = tf.gather(flat, of_part) - tf.cast(start, flat.dtype)
        with tf.device(device):
            found.append(tf.gather(value, wanted))
    rows = tf.dynamic_stitch(places, found)
    rows = tf.reshape(rows, tf.concat([tf.shape(ids), values[0].shape[1:]], axis=0))
    return tf.ensure_shape(rows, ids.shape + values[0].shape[1:])


def joined(gradients: Sequence[Any]) -> Any:
    """The gradient of a variable from those of its parts.

    Args:
        gradients: tensors, `tf.IndexedSlices` with a known first dimension, or None.

    Returns:
        None if there is none; `tf.IndexedSlices` if all are.
    """
    if len(gradients) == 1 or all(gradient is None for gradient in gradients):
        return gradients[0]
    if not all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        return tf.concat([tf.convert_to_tensor(gradient) for gradient in gradients], axis=0)
    sizes = [tf.get_static_value(gradient.dense_shape)[0] for gradient in gradients]
    row = tf.get_static_value(gradients[0].dense_shape)[1:]
    moved = [
        gradient.indices + tf.cast(start, gradient.indices.dtype)
        for gradient, start in zip(gradients, _starts(sizes))
    ]
    return tf.IndexedSlices(
        tf.concat([gradient.values for gradient in gradients], axis=0),
        tf.concat(moved, axis=0),
        tf.constant([sum(sizes), *row], gradients[0].dense_shape.dtype),
    )


def split(value: Any, parts: Sequence[keras.Variable]) -> list[Any]:
    """A variable's gradient or change as those of its parts.

    Args:
        value: a tensor or `tf.IndexedSlices` of the whole variable.
        parts: the parts.
    """
    if len(parts) == 1:
        return [value]
    sizes = [part.shape[0] for part in parts]
    if not isinstance(value, tf.IndexedSlices):
        return tf.split(value, sizes)
    owners = _owners(value.indices, sizes)
    rows = tf.dynamic_partition(value.values, owners, len(parts))
    indices = tf.dynamic_partition(value.indices, owners, len(parts))
    return [
        tf.IndexedSlices(
            of_part,
            index - tf.cast(start, index.dtype),
            tf.constant(part.shape.as_list(), index.dtype),
        )
        for part, of_part, index, start in zip(parts, rows, indices, _starts(sizes))
    ]


def _starts(sizes: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(sizes, initial=0))[:-1]


def _owners(ids: tf.Tensor, sizes: Sequence[int]) -> tf.Tensor:
    """int32, in which part the rows are; those beyond the end would be in the last one."""
    ends = tf.constant(list(itertools.accumulate(sizes))[:-1], ids.dtype)
    return tf.searchsorted(ends, ids, side="right")


# --- Updates --------------------------------------------------------------------------------------


class PartitioningExtended(compat.ParameterServerExtended):
    """Lets an optimizer update a part with the part of its state that is beside it."""

    def updating_part(self, place: int) -> contextlib.AbstractContextManager:
        """In this context, partitioned Keras variables stand for their `place`-th parts."""
        return _OnePart(place)


class _OnePart(keras.StatelessScope):
    def __init__(self, place: int):
        super().__init__(initialize_variables=False)
        self._place = place

    def get_current_value(self, variable: keras.Variable) -> tf.Variable | None:
        with compat.outside_stateless_scope():
            value = variable.value
        partitioned = isinstance(value, compat.PartitionedVariable)
        return value.variables[self._place] if partitioned else None

    def add_update(self, update: tuple) -> None:
        variable, value = update
        with compat.outside_stateless_scope():
            parts_of(variable)[self._place].assign(value)


def constrain(variables: Sequence[keras.Variable]) -> None:
    """Applies the constraints of partitioned variables, which may need all of their parts."""
    for variable in variables:
        if variable.constraint is not None and len(parts_of(variable)) > 1:
            variable.assign(variable.constraint(variable))


def check_optimizer(optimizer: keras.optimizers.Optimizer, variables: Sequence[Any]) -> None:
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
