"""Sizes in a step's graph: of the samples, of other dimensions, of values that the data choose."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

# They hand on a number, or take it from a shape.
_NUMBERS = ("Cast", "Identity", "Neg", "StridedSlice", "Prod", "Maximum")
# Each row of their results belongs to a row of their inputs; reductions of the rows are left out.
_BY_ROWS = {
    *("Abs", "Add", "AddN", "AddV2", "Cast", "CheckNumerics", "ClipByValue", "DivNoNan"),
    *("EnsureShape", "Exp", "ExpandDims", "Identity", "Log", "Log1p", "LogSoftmax", "Max"),
    *("Maximum", "Mean", "Minimum", "Mul", "Neg", "OneHot", "Pow", "PreventGradient", "RealDiv"),
    *("Relu", "Reshape", "Rsqrt", "SelectV2", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Square"),
    *("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits", "Squeeze"),
    *("SquaredDifference", "StopGradient", "StridedSlice", "Sub", "Sum", "Tanh"),
}
_REDUCTIONS = ("Max", "Mean", "Sum")
_GATHERS = ("Gather", "GatherV2", "GatherNd")
# Dimensions change places in their results.
OTHER_ORDERS = ("Transpose", "Einsum")


def is_length(tensor: tf.Tensor) -> bool:
    """Whether a tensor consists of dimensions of a shape other than the first one, the samples."""
    operation = tensor.op
    if operation.type not in ("StridedSlice", "Unpack") or operation.inputs[0].op.type != "Shape":
        return False
    sized = operation.inputs[0].op.inputs[0]
    if tf.is_symbolic_tensor(sized) and sized.op.type in OTHER_ORDERS:
        return False
    if operation.type == "Unpack":
        return tensor.value_index > 0
    begin, rank = tf.get_static_value(operation.inputs[1]), sized.shape.rank
    return begin is not None and (begin[0] > 0 or (rank is not None and -rank < begin[0] < 0))


def is_size(tensor: tf.Tensor) -> bool:
    """Whether a scalar is a dimension of a tensor, or the number of its elements."""
    return _sized(tensor) is not None


def counts_chosen(tensor: tf.Tensor) -> bool:
    """Whether a scalar is the size of a tensor of as many values as the data choose."""
    sized = _sized(tensor)
    return sized is not None and selects_samples(sized)


def _sized(tensor: tf.Tensor) -> tf.Tensor | None:
    """The tensor whose shape a scalar is taken from."""
    while tensor.op.type in _NUMBERS:
        tensor = tensor.op.inputs[0]
    return tensor.op.inputs[0] if tensor.op.type in ("Shape", "Size") else None


def selects_samples(values: tf.Tensor) -> bool:
    """Whether the number of rows depends on the data, as with `tf.boolean_mask`."""
    return any(_chooses(operation) for operation in _beneath(values))


def _chooses(operation: tf.Operation) -> bool:
    if operation.type == "Where":
        return True
    if operation.type not in _GATHERS:
        return False
    indices = operation.inputs[1].op
    while indices.type in ("Squeeze", "Reshape", "Cast", "Identity", "StridedSlice"):
        indices = indices.inputs[0].op
    return indices.type == "Where"


def _beneath(tensor: tf.Tensor) -> Iterator[tf.Operation]:
    """The operations that a tensor's rows come from, up to where rows are no longer the same."""
    todo, seen = [tensor], set()
    while todo:
        tensor = todo.pop()
        if not tf.is_symbolic_tensor(tensor) or tensor.op in seen:
            continue
        operation = tensor.op
        seen.add(operation)
        yield operation
        joins_rows = operation.type in _REDUCTIONS and reduces_samples(operation)
        if operation.type in _BY_ROWS and not joins_rows:
            todo.extend(operation.inputs)


def reduces_samples(operation: tf.Operation) -> bool:
    """Whether a reduction removes the first dimension, which belongs to the samples."""
    if operation.get_attr("keep_dims"):
        return False
    axes, rank = tf.get_static_value(operation.inputs[1]), operation.inputs[0].shape.rank
    return axes is None or rank is None or 0 in {int(a) % rank for a in axes.reshape(-1)}
