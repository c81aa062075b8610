"""An optimizer's update of a large part of a variable, some rows at a time.

Keras' optimizers compute with whole variables, even where a gradient has few rows: Adam needs about
fifteen times the memory of the variable for what it computes in between.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import tensorflow as tf

from tfdist.structures import Structure

LARGE_BYTES = 32 * 1024 * 1024
"""A larger part is updated in pieces, one after the other."""

PIECE_BYTES = 4 * 1024 * 1024
"""The bytes of a piece. With pieces of 32 MiB a server needed 0.9 GB for Adam's update of a part of
0.1 GB, as the C library keeps what was freed; with 4 MiB 0.1 GB, and the update was no slower."""


class _ComputesWithRows(Exception):
    """An update reads or replaces rows that the gradient does not name."""


class _State(threading.local):
    scattered: list[tuple[Callable, tf.Variable, tf.IndexedSlices]] | None = None


_state = _State()


class RowsOfVariable:
    """Some rows of a variable, in place of the variable in an optimizer's update.

    Args:
        variable: a part of a partitioned variable.
        start: int64 scalar, the first row.
        size: int64 scalar, the number of rows.

    Attributes:
        variable: the variable.
    """

    def __init__(self, variable: tf.Variable, start: tf.Tensor, size: tf.Tensor):
        self.dtype = variable.dtype
        self.name = variable.name
        self.device = variable.device
        self.shape = tf.TensorShape([None, *variable.shape[1:]])
        self.variable = variable
        self._start = start
        self._size = size

    def _numbers(self) -> tf.Tensor:
        if _state.scattered is not None:
            raise _ComputesWithRows
        return tf.range(self._start, self._start + self._size)

    def read_value(self) -> tf.Tensor:
        """The values of these rows."""
        return tf.raw_ops.ResourceGather(
            resource=self.variable.handle, indices=self._numbers(), dtype=self.dtype
        )

    def __tf_tensor__(self, dtype: tf.DType | None = None, name: str | None = None) -> tf.Tensor:
        del name
        return self.read_value() if dtype is None else tf.cast(self.read_value(), dtype)

    def __mul__(self, factor: tf.Tensor | float) -> tf.Tensor:
        return self.read_value() * factor

    def assign(self, value: tf.Tensor | float) -> None:
        """Replaces the rows."""
        tf.raw_ops.ResourceScatterUpdate(
            resource=self.variable.handle,
            indices=self._numbers(),
            updates=tf.convert_to_tensor(value, self.dtype),
        )

    def assign_add(self, value: tf.Tensor | float) -> None:
        """Adds to the rows."""
        self.assign(self.read_value() + value)

    def assign_sub(self, value: tf.Tensor | float) -> None:
        """Subtracts from the rows."""
        self.assign(self.read_value() - value)

    def scatter_add(self, value: tf.IndexedSlices) -> None:
        """Adds to some of the rows."""
        self._scatter(tf.raw_ops.ResourceScatterAdd, value)

    def scatter_sub(self, value: tf.IndexedSlices) -> None:
        """Subtracts from some of the rows."""
        self._scatter(tf.raw_ops.ResourceScatterSub, value)

    def scatter_update(self, value: tf.IndexedSlices) -> None:
        """Replaces some of the rows."""
        self._scatter(tf.raw_ops.ResourceScatterUpdate, value)

    def _scatter(self, operation: Callable, value: tf.IndexedSlices) -> None:
        indices = value.indices + tf.cast(self._start, value.indices.dtype)
        moved = tf.IndexedSlices(value.values, indices)
        if _state.scattered is None:
            _apply(operation, self.variable, moved)
        else:
            _state.scattered.append((operation, self.variable, moved))


def _apply(operation: Callable, variable: tf.Variable, value: tf.IndexedSlices) -> None:
    operation(resource=variable.handle, indices=value.indices, updates=value.values)


Piece = Callable[[tf.Tensor, tf.Tensor], AbstractContextManager]
"""Called with the first row and the number of rows of a piece. The context of its update."""


def in_pieces(update: Callable, context_of: Piece) -> Callable:
    """A function that updates a part of a variable as `update` does, in pieces where it is large.

    Args:
        update: changes each element of the variable by itself. Takes the variable and further
            arguments: scalars, and gradients, which are divided as the variable is.
        context_of: see `Piece`.
    """

    def update_pieces(variable: tf.Variable, *args: Structure, **kwargs: Structure) -> None:
        rows, row_bytes = variable.shape[0], math.prod(variable.shape[1:]) * variable.dtype.size
        if rows * row_bytes <= LARGE_BYTES:
            update(variable, *args, **kwargs)
            return
        with tf.device(variable.device):
            args = tuple(map(_copied, args))
            first, size = (tf.constant(number, tf.int64) for number in (0, rows))
            with context_of(first, size):
                all_rows = RowsOfVariable(variable, first, size)
                sparse = any(isinstance(argument, tf.IndexedSlices) for argument in args)
                if sparse and _scatters(functools.partial(update, all_rows, *args, **kwargs)):
                    return
        most = max(1, PIECE_BYTES // row_bytes)

        def one(start: tf.Tensor) -> list[tf.Tensor]:
            with tf.device(variable.device):
                size = tf.minimum(tf.constant(most, tf.int64), rows - start)
                piece = RowsOfVariable(variable, start, size)
                given = [_rows_of(argument, variable, start, size) for argument in args]
                with context_of(start, size):
                    update(piece, *given, **kwargs)
                return [start + most]

        # On one device, or devices would tell each other of each piece. One after the other: each
        # needs memory for what it computes in between.
        with tf.device(variable.device):
            tf.while_loop(lambda start: start < rows, one, [first], parallel_iterations=1)

    return update_pieces


def _scatters(update: Callable[[], None]) -> bool:
    """Makes an update if it only adds to rows that a gradient names. Returns whether it does.

    Plain SGD is such an update. There is no need to visit the other rows.
    """
    scattered: list[tuple[Callable, tf.Variable, tf.IndexedSlices]] = []
    _state.scattered = scattered
    try:
        update()
    except _ComputesWithRows:
        return False
    finally:
        _state.scattered = None
    for one in scattered:
        _apply(*one)
    return True


def _copied(argument: Structure) -> Structure:
    """A tensor or a gradient on the present device."""
    is_tensor = isinstance(argument, (tf.Tensor, tf.IndexedSlices))
    return tf.identity(argument) if is_tensor else argument


def _rows_of(
    argument: Structure, variable: tf.Variable, start: tf.Tensor, size: tf.Tensor
) -> Structure:
    """The rows of a gradient; any other argument as it is."""
    if isinstance(argument, tf.IndexedSlices):
        first = tf.cast(start, argument.indices.dtype)
        indices = argument.indices - first
        mine = (indices >= 0) & (indices < tf.cast(size, indices.dtype))
        shape = tf.concat([[size], tf.constant([*variable.shape[1:]], tf.int64)], axis=0)
        values = tf.boolean_mask(argument.values, mine)
        return tf.IndexedSlices(values, tf.boolean_mask(indices, mine), shape)
    if isinstance(argument, tf.Tensor) and argument.shape.rank != 0:
        return tf.ensure_shape(argument, variable.shape)[start : start + size]
    return argument
