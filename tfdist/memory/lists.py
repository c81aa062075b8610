"""Bytes of what loops keep for the backward pass: lists of tensors, one for each value and turn."""

from __future__ import annotations

import math
from collections.abc import Collection

import tensorflow as tf

LOOPS = ("While", "StatelessWhile")
_LISTS = ("EmptyTensorList", "TensorListReserve")


def bytes_of_lists(
    graph: tf.Graph, weights: Collection[tuple[int, ...]]
) -> dict[tf.Operation, int]:
    """The bytes of each list of tensors that loops fill, by the operation that makes the list.

    A loop of recurrent layers has lists with one tensor for each turn. How many turns there are is
    known from those of its lists that state their length, which is the number of time steps.

    Args:
        graph: of a traced function.
        weights: shapes of variables; a list of these holds one variable again and again.
    """
    found: dict[tf.Operation, int] = {}
    for loop in graph.get_operations():
        if loop.type not in LOOPS:
            continue
        turns = max((_length(tensor.op) for tensor in loop.inputs), default=0)
        for tensor in loop.inputs:
            shape = _element_shape(tensor.op)
            if shape is not None and shape not in weights:
                size = tensor.op.get_attr("element_dtype").size
                found[tensor.op] = (_length(tensor.op) or turns) * math.prod(shape) * size
    return found


def _length(operation: tf.Operation) -> int:
    """The number of tensors in a list; 0 where it is not known."""
    if operation.type == "TensorListFromTensor":
        return operation.inputs[0].shape[0] or 0
    count = tf.get_static_value(operation.inputs[1]) if operation.type in _LISTS else None
    return 0 if count is None else max(0, int(count))


def _element_shape(operation: tf.Operation) -> tuple[int, ...] | None:
    """The shape of each tensor in a list; None where it is not known, or there is no list."""
    shape = tf.get_static_value(operation.inputs[0]) if operation.type in _LISTS else None
    if shape is None or shape.ndim == 0 or (shape < 0).any():
        return None
    return tuple(int(size) for size in shape)
