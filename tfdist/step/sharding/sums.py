"""Gradients of weights in parts must come to the optimizer as the backward pass has summed them."""

from __future__ import annotations

from collections.abc import Collection

import tensorflow as tf

from tfdist.structures import Gradient

# What a tape does to add up several gradients by one weight, and what else does the same to a part
# of a sum as to what is summed.
_LINEAR = {"AddN", "AddV2", "Add", "ConcatV2", "Identity", "UnsortedSegmentSum"}
_LINEAR |= {"Neg", "Sub", "Cast", "CheckNumerics", "StopGradient"}
_SCALING = {"Mul": (0, 1), "RealDiv": (0,)}


def check_sums(path: str, gradient: Gradient, sums: Collection[tf.Tensor]) -> None:
    """Raises ValueError if a step has changed a gradient in a way that needs the whole of it.

    A gradient of a weight in parts is a part of a sum over the replicas. To multiply it by a
    number, or to add another such part, is right. To clip it, or to subtract its mean, would be
    wrong without a word: each replica would do something else to its part.

    Args:
        path: of the weight.
        gradient: what the optimizer is given, in a graph.
        sums: what the backward pass has summed.
    """
    known = {id(tensor) for tensor in sums}
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    if tf.is_symbolic_tensor(values) and not _consists_of(values, known):
        if not _depends_on(values, known):
            raise ValueError(_NOT_SUMMED.format(path))
        changed = f"{path} that is the result of the operation {values.op.type}"
        raise ValueError(_CHANGED.format(changed))


def check_unchanged(path: str, gradient: Gradient, given: Collection[Gradient]) -> None:
    """As `check_sums`, in an eager step, where nobody knows what a step has done to a gradient.

    Raises:
        ValueError: if the gradient is not one of those that tapes have `given`.
    """
    if not any(gradient is one for one in given):
        raise ValueError(_CHANGED.format(f"{path} that an eager step has changed"))


_CHANGED = (
    'With `sharding="parameters"` a step gets this replica\'s part of the summed gradient, '
    "so it cannot clip or normalize a gradient itself. Let the optimizer clip (`clipnorm`, "
    "`global_clipnorm`, `clipvalue`), or take another `sharding`. Received: a gradient of {}"
)
_NOT_SUMMED = (
    'With `sharding="parameters"` the optimizer takes parts of gradients, as the tape gives them. '
    "Pass None for a weight without a gradient, not zeros of the weight's shape. Received: a "
    "gradient of {} that the tape has not given"
)


def _consists_of(tensor: tf.Tensor, known: Collection[int]) -> bool:
    """Whether a gradient is a sum of what is known, times numbers."""
    if id(tensor) in known:
        return True
    operation = tensor.op
    if operation.type == "IdentityN":
        return _consists_of(operation.inputs[tensor.value_index], known)
    if operation.type in _LINEAR:
        terms = [one for one in operation.inputs if one.dtype.is_floating]
        return bool(terms) and all(_consists_of(one, known) for one in terms)
    for place in _SCALING.get(operation.type, ()):
        factor = operation.inputs[1 - place]
        if factor.shape.rank == 0 and not _depends_on(factor, known):
            return _consists_of(operation.inputs[place], known)
    return False


def _depends_on(tensor: tf.Tensor, known: Collection[int]) -> bool:
    todo, seen = [tensor], set()
    while todo:
        one = todo.pop()
        if id(one) in known:
            return True
        if one.op not in seen:
            seen.add(one.op)
            todo.extend(one.op.inputs)
    return False
