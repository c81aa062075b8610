"""Sizes in a step's graph: of the samples, of other dimensions, of values that the data choose."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from tfdist.step import replica
from tfdist.step.loss_tags import are_values

# They hand on a number, or take it from a shape.
_NUMBERS = ("Cast", "Identity", "Neg", "StridedSlice", "Prod", "StopGradient")
# Each row of their results belongs to a row of their inputs; reductions of the rows are left out.
_BY_ROWS = {
    *(
        "Abs",
        "Add",
        "AddN",
        "AddV2",
        "Cast",
        "CheckNumerics",
        "ClipByValue",
        "ConcatV2",
        "DivNoNan",
    ),
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
# The first dimension of their results is, or may be, a new one.
_STACKS = ("Pack", "TensorListStack")
_NEW_FIRST = (*OTHER_ORDERS, *_STACKS)


def is_length(tensor: tf.Tensor) -> bool:
    """Whether a tensor consists of dimensions of a shape other than the first one, the samples."""
    operation = tensor.op
    if operation.type not in ("StridedSlice", "Unpack") or operation.inputs[0].op.type != "Shape":
        return False
    sized = operation.inputs[0].op.inputs[0]
    if any(beneath.op.type in _NEW_FIRST for beneath in _beneath(sized)):
        return False
    if operation.type == "Unpack":
        first: int | None = tensor.value_index
    else:
        begin = tf.get_static_value(operation.inputs[1])
        first = None if begin is None else int(begin[0])
    rank = sized.shape.rank
    if first is None or first == 0 or (first < 0 and (rank is None or first <= -rank)):
        return False
    if rank is None or sized.shape[0] is None or sized.shape[first] is not None:
        return True
    # If another dimension than the first one is open, that one has the samples, unless these are
    # known to be in the first one: `drop_remainder=True` makes their number static.
    return sized.op.type == "Placeholder" and _has_samples_first(sized)


def _has_samples_first(argument: tf.Tensor) -> bool:
    step = replica.current()
    return step is None or step.samples == argument.shape[0]


def is_size(tensor: tf.Tensor) -> bool:
    """Whether a scalar is a dimension of a tensor, or the number of its elements."""
    return _sized(tensor) is not None


def without_bound(number: tf.Tensor) -> tuple[tf.Tensor, float | None]:
    """What is kept above a number in `tf.maximum(n, 1)`, and the number; `number` and None else."""
    tensor = number
    while tensor.op.type in ("Cast", "Identity", "StopGradient"):
        tensor = tensor.op.inputs[0]
    if tensor.op.type == "Maximum":
        for one, other in (tensor.op.inputs, reversed(tensor.op.inputs)):
            bound = tf.get_static_value(other)
            if bound is not None and bound.ndim == 0:
                return one, float(bound)
    return number, None


def counts_chosen(tensor: tf.Tensor) -> bool:
    """Whether a scalar is the size of a tensor of as many values as the data choose."""
    sized = _sized(tensor)
    return sized is not None and selects_samples(sized)


def have_moved(values: tf.Tensor) -> bool:
    """Whether the first dimension may be a new one, or have changed places: not the samples."""
    return any(tensor.op.type in ("Transpose", *_STACKS) for tensor in _beneath(values))


def _sized(tensor: tf.Tensor) -> tf.Tensor | None:
    """The tensor whose shape a scalar is taken from."""
    while tensor.op.type in _NUMBERS:
        tensor = tensor.op.inputs[0]
    return tensor.op.inputs[0] if tensor.op.type in ("Shape", "Size") else None


def selects_samples(values: tf.Tensor) -> bool:
    """Whether the number of rows depends on the data, as with `tf.boolean_mask`."""
    return any(are_values(tensor) or _chooses(tensor.op) for tensor in _beneath(values))


def _chooses(operation: tf.Operation) -> bool:
    if operation.type == "Where":
        return True
    if operation.type not in _GATHERS:
        return False
    indices = operation.inputs[1].op
    while indices.type in ("Squeeze", "Reshape", "Cast", "Identity", "StridedSlice"):
        indices = indices.inputs[0].op
    return indices.type == "Where"


def _beneath(tensor: tf.Tensor) -> Iterator[tf.Tensor]:
    """The tensors that a tensor's rows come from, up to where rows are no longer the same."""
    todo, seen = [tensor], set()
    while todo:
        tensor = todo.pop()
        if not tf.is_symbolic_tensor(tensor) or id(tensor) in seen:
            continue
        operation = tensor.op
        seen.add(id(tensor))
        yield tensor
        joins_rows = operation.type in _REDUCTIONS and reduces_samples(operation)
        if operation.type in _BY_ROWS and not joins_rows:
            todo.extend(operation.inputs)


def reduces_samples(operation: tf.Operation) -> bool:
    """Whether a reduction removes the first dimension, which belongs to the samples."""
    return joins_samples(operation) and not operation.get_attr("keep_dims")


def joins_samples(operation: tf.Operation) -> bool:
    """Whether a reduction is one over the first dimension, of which it may keep one element."""
    axes, rank = tf.get_static_value(operation.inputs[1]), operation.inputs[0].shape.rank
    return axes is None or rank is None or 0 in {int(a) % rank for a in axes.reshape(-1)}
