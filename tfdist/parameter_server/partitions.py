"""Variables in parts: a `variable_partitioner` divides them among the parameter servers.

Each part stays on its parameter server. Steps, gradients and updates deal with the parts. The
model, the optimizer and files deal with the whole variable.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.structures import Gradient

# A smaller table is read whole: its bytes cost less than asking for single rows.
SMALL_BYTES = 64 * 1024

# A larger table is never copied. Once some of its rows were updated, TensorFlow copies a variable
# whenever it is read, and each worker would hold such a copy.
_COPIED_BYTES = 64 * 1024 * 1024


class VariablePart(keras.Variable):
    """A part of a partitioned variable as a Keras variable.

    Args:
        variable: the whole variable.
        place: the index of the part.
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
        """The path of the whole variable, and the index of the part."""
        return self._path_of_part


def parts_of(variable: keras.Variable) -> list[keras.Variable]:
    """The parts of a partitioned variable, the same at each call; of any other, itself."""
    value = variable.value
    if not isinstance(value, compat.PartitionedVariable):
        return [variable]
    if not value.parts:
        with tf.init_scope():
            value.parts = [VariablePart(variable, place) for place in range(len(value.variables))]
    return value.parts


def parts_of_all(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
    """The parts of several variables, one after the other."""
    return [part for variable in variables for part in parts_of(variable)]


def whole(values: Sequence[tf.Tensor | tf.Variable]) -> tf.Tensor:
    """The value of a variable from the values of its parts, or from its parts."""
    tensors = [tf.convert_to_tensor(value) for value in values]
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, axis=0)


def is_small(variable: keras.Variable) -> bool:
    """Whether reading all rows costs no more than reading some."""
    return _bytes_of(variable) <= SMALL_BYTES


def is_copied(variable: keras.Variable) -> bool:
    """Whether a worker computes with a copy of the value, as it was after some update.

    The rows of other variables are read when the step needs them.
    """
    return not variable.trainable or _bytes_of(variable) <= _COPIED_BYTES


def _bytes_of(variable: keras.Variable) -> int:
    return variable.shape.num_elements() * tf.as_dtype(variable.dtype).size


def lookup(
    values: Sequence[tf.Tensor | tf.Variable], devices: Sequence[str], ids: tf.Tensor
) -> tf.Tensor:
    """Rows of a table, each read on the device that has it.

    Args:
        values: the parts of the table, or their values, of shapes (n_i, ...).
        devices: the devices of the parts.
        ids: integers of any shape; negative ones count from the end. For rows outside of the table
            TensorFlow raises an error when the step runs.

    Returns:
        A tensor whose shape is the shape of `ids`, followed by the shape of a row.
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


def joined(gradients: Sequence[Gradient | None]) -> Gradient | None:
    """The gradient of a variable from the gradients of its parts.

    Args:
        gradients: tensors, `tf.IndexedSlices` with a known first dimension, or None.

    Returns:
        None if all gradients are None; `tf.IndexedSlices` if all are `tf.IndexedSlices`.
    """
    if len(gradients) == 1 or all(gradient is None for gradient in gradients):
        return gradients[0]
    slices = [gradient for gradient in gradients if isinstance(gradient, tf.IndexedSlices)]
    if len(slices) < len(gradients):
        return tf.concat([tf.convert_to_tensor(gradient) for gradient in gradients], axis=0)
    sizes = [tf.get_static_value(of_part.dense_shape)[0] for of_part in slices]
    row = tf.get_static_value(slices[0].dense_shape)[1:]
    moved = [
        of_part.indices + tf.cast(start, of_part.indices.dtype)
        for of_part, start in zip(slices, _starts(sizes))
    ]
    return tf.IndexedSlices(
        tf.concat([of_part.values for of_part in slices], axis=0),
        tf.concat(moved, axis=0),
        tf.constant([sum(sizes), *row], slices[0].dense_shape.dtype),
    )


def split(value: Gradient, parts: Sequence[keras.Variable]) -> list[Gradient]:
    """Divides a variable's gradient or change into those of its parts.

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
    """int32, the part that each row is in. Rows beyond the end count as in the last part."""
    ends = tf.constant(list(itertools.accumulate(sizes))[:-1], ids.dtype)
    return tf.searchsorted(ends, ids, side="right")
