"""What a tensor of a step's graph is computed from: variables, numbers, or data."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import tensorflow as tf

from tfdist import compat


def is_constant(tensor: tf.Tensor) -> bool:
    """Whether a tensor of a graph depends on nothing but numbers and variables."""
    for origin in _origins(tensor):
        if isinstance(origin, tf.Operation):
            return False
        if origin.dtype != tf.resource and origin.shape.rank != 0:
            return False
    return True


def depends_on(tensor: tf.Tensor, sources: Collection[int]) -> bool:
    """Whether `tensor` has a gradient by one of `sources`, which are ids of resources."""
    return any(id(origin) in sources for origin in _origins(tensor, with_gradient=True))


def _origins(tensor: tf.Tensor, with_gradient: bool = False) -> Iterator[Any]:
    """What `tensor` is computed from: captured tensors, arguments, operations that make data."""
    todo, seen = [tensor], set()
    while todo:
        tensor = todo.pop()
        if not hasattr(tensor, "op"):  # an eager tensor that a function has captured
            yield tensor
            continue
        operation = tensor.op
        if operation in seen or (with_gradient and operation.type == "StopGradient"):
            continue
        seen.add(operation)
        if operation.type == "Placeholder":
            outside = compat.captured_tensor(tensor)
            if outside is None:
                yield tensor
            else:
                todo.append(outside)
        elif _makes_data(operation.type):
            yield operation
        else:
            todo.extend(operation.inputs)


def _makes_data(operation_type: str) -> bool:
    kinds = ("Random", "Multinomial", "Categorical", "Iterator", "Optional", "Dataset")
    return any(kind in operation_type for kind in kinds)
