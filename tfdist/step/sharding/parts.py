"""How a variable is divided into equal parts, one for each replica."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

# Tables are cut between rows, so that the gradients of some rows can be divided too. That is left
# out where the rows that fill up the last part would be more than an eighth of a large table.
_MOST_FILLING = 1 / 8
_SMALL_BYTES = 64 * 1024

NOTHING: Mapping[int, Parts] = types.MappingProxyType({})
"""Where no weight is divided."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The equal parts of one variable. The last ones are filled up with zeros.

    Attributes:
        shape: of the whole variable.
        dtype: of the variable.
        replicas: the number of parts.
        row: how many elements stay together: a row of a table, else one.
    """

    shape: tuple[int, ...]
    dtype: tf.DType
    replicas: int
    row: int

    @classmethod
    def of(cls, spec: tf.TensorSpec, replicas: int) -> Parts:
        """The parts of a variable of the shape and dtype of `spec`."""
        shape = tuple(spec.shape.as_list())
        if len(shape) == 2 and all(shape):
            rows = cls(shape, spec.dtype, replicas, shape[1])
            filling = rows.length * replicas - rows.size
            small = rows.length * replicas * spec.dtype.size <= _SMALL_BYTES
            if small or filling <= _MOST_FILLING * rows.size:
                return rows
        return cls(shape, spec.dtype, replicas, 1)

    @property
    def size(self) -> int:
        """The number of elements of the variable."""
        return math.prod(self.shape)

    @property
    def holders(self) -> Sequence[int]:
        """The replicas that have a part: all."""
        return range(self.replicas)

    @property
    def rows(self) -> int:
        """How many rows, or elements, a part has; at least one."""
        return max(1, math.ceil(self.size // self.row / self.replicas))

    @property
    def length(self) -> int:
        """How many elements a part has."""
        return self.rows * self.row

    @property
    def of_rows(self) -> bool:
        """Whether parts are cut between the rows of a table."""
        return len(self.part_shape) == 2

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of a part."""
        is_table = len(self.shape) == 2 and self.row == self.shape[1] and self.size > 0
        return (self.rows, self.row) if is_table else (self.length,)

    @property
    def spec(self) -> tf.TensorSpec:
        """The shape and dtype of a part."""
        return tf.TensorSpec(self.part_shape, self.dtype)

    def divided(self, whole: tf.Tensor) -> tf.Tensor:
        """All parts of a tensor of the variable's shape, of shape `[replicas, length]`."""
        flat = tf.reshape(whole, [self.size])
        filling = self.replicas * self.length - self.size
        if filling:
            flat = tf.pad(flat, [[0, filling]])
        return tf.reshape(flat, [self.replicas, self.length])

    def joined(self, rows: tf.Tensor) -> tf.Tensor:
        """Inverse of `divided`: the tensor of the variable's shape."""
        flat = tf.reshape(rows, [self.replicas * self.length])
        return tf.reshape(flat if flat.shape[0] == self.size else flat[: self.size], self.shape)

    def place(self, replica: int) -> tuple[int, int]:
        """The numbers of the first element of one replica's part, and of the one behind it."""
        begin = min(replica * self.length, self.size)
        return begin, min(begin + self.length, self.size)

    def part(self, whole: tf.Tensor, replica: int) -> tf.Tensor:
        """The part of one replica, in its shape."""
        begin, end = self.place(replica)
        return self.filled(tf.reshape(whole, [self.size])[begin:end])

    def filled(self, flat: tf.Tensor) -> tf.Tensor:
        """The part that has these elements, in its shape."""
        filling = self.length - flat.shape[0]
        if filling:
            flat = tf.pad(flat, [[0, filling]])
        return tf.reshape(flat, self.part_shape)

    def kept_part(self, whole: tf.Tensor, replica: int) -> tf.Tensor:
        """As `part`, with memory of its own: a slice would keep the whole tensor in memory."""
        return tf.raw_ops.DeepCopy(x=self.part(whole, replica))

    def rows_of_part(self, rows: tf.IndexedSlices, replica: int) -> tf.IndexedSlices:
        """Those of the rows of a sparse gradient that belong to one replica's part."""
        first = replica * self.rows
        places = rows.indices - first
        own = tf.logical_and(places >= 0, places < self.rows)
        return tf.IndexedSlices(
            tf.boolean_mask(rows.values, own),
            tf.boolean_mask(places, own),
            tf.constant(self.part_shape, rows.indices.dtype),
        )

    # --- arrays, for files --------------------------------------------------------------------

    def part_of_array(self, whole: np.ndarray, replica: int) -> np.ndarray:
        """As `part`, for an array."""
        flat = np.reshape(whole, [self.size])[replica * self.length :][: self.length]
        return np.pad(flat, [(0, self.length - flat.size)]).reshape(self.part_shape)

    def array_of_parts(self, parts: list[np.ndarray]) -> np.ndarray:
        """The array of the variable's shape that has these parts."""
        flat = np.concatenate([np.reshape(part, [self.length]) for part in parts])
        return flat[: self.size].reshape(self.shape)
