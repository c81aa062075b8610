"""Losses that are no scalars: one value for each sample, or several losses in one tensor.

The gradient of one value for each sample is a sum over the samples. The gradient of several losses
in one tensor is the sum of theirs, each of which may be a mean over the samples.
"""

from __future__ import annotations

import warnings

import tensorflow as tf

from tfdist import compat
from tfdist.step.loss_reductions import (
    BY_SAMPLES,
    RATIO,
    SELECTION,
    compares_samples,
    kind_of,
    may_have_samples,
)
from tfdist.step.loss_terms import (
    ELEMENTWISE,
    MEAN,
    SUM,
    UNKNOWN,
    Term,
    is_fixed,
    number_in,
    terms_of,
)
from tfdist.step.origins import is_constant
from tfdist.step.replica import ReplicaStep
from tfdist.step.sizes import have_moved, joins_samples, selects_samples

# What they return consists of the values of their inputs, or of sums of these.
_OF_THE_SAME = {
    *("Add", "AddN", "AddV2", "Cast", "ConcatV2", "ExpandDims", "Identity", "Neg", "Pack"),
    *("Reshape", "Squeeze", "StridedSlice", "Sub"),
}
_PRODUCTS = ("DivNoNan", "Mul", "RealDiv")
MIXED = "made of means and sums over samples"
_LOSSES = "several losses, each a mean over the samples"


def stacked(target: tf.Tensor, gradient: tf.Tensor | None) -> list[tuple]:
    """The scalars that `tf.stack` has made a target of, each with the factor of its gradient.

    Args:
        target: a tensor.
        gradient: a factor of its gradient, or None.

    Returns:
        Pairs of a tensor and a factor or None; the target itself if it is something else.
    """
    if not tf.is_symbolic_tensor(target) or target.op.type != "Pack":
        return [(target, gradient)]
    scalars = list(target.op.inputs)
    if any(scalar.shape.rank != 0 for scalar in scalars):
        return [(target, gradient)]
    factors = [None] * len(scalars) if gradient is None else tf.unstack(gradient, len(scalars))
    return list(zip(scalars, factors))


def are_of_samples(step: ReplicaStep, loss: tf.Tensor) -> bool:
    """Whether the values of a loss add up over the samples, so that its gradient is a sum.

    A graph may tell. Else the shape does: if it has an open dimension, that one has the samples.
    Warns where neither tells.

    Args:
        step: the step that is running.
        loss: a floating-point tensor that is no scalar.
    """
    is_symbolic = tf.is_symbolic_tensor(loss)
    kind = _kind(step, loss) if is_symbolic else UNKNOWN
    if kind == MIXED:
        _warn(step, loss, _LOSSES)
    if kind != UNKNOWN:
        return kind == SUM
    if loss.shape.rank is None or None in loss.shape.as_list():
        return True
    first, values, samples = loss.shape[0], loss.shape.num_elements(), step.samples
    if samples is not None and first == samples:
        if values == 1 and not is_symbolic:
            _warn(step, loss, "the value of the replica's one sample")
        return True
    if samples is not None and samples > 1 and values % samples == 0:
        if not is_symbolic:
            _warn(step, loss, "as many values for each sample")
        return True
    # Values of pairs of samples, or losses that happen to be so many.
    is_of_groups = is_symbolic and samples is not None and first > 1 and samples % first == 0
    _warn(step, loss, "values of samples" if is_of_groups else _LOSSES)
    return is_of_groups


def _kind(step: ReplicaStep, loss: tf.Tensor) -> str:
    """What each value is over the samples, by the graph: SUM, MEAN or MIXED, or UNKNOWN.

    MIXED is what is computed from means and sums in another way; a value of a sample is UNKNOWN.
    What does not depend on the samples, such as a variable, counts as a mean.
    """
    left, seen, kinds = [loss], set(), set()
    while left:
        tensor = left.pop()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        operation = tensor.op
        values = [one for one in operation.inputs if one.dtype.is_floating]
        if _is_alike(step, tensor):
            kinds |= set() if operation.type == "Const" else {MEAN}
        elif tensor.shape.rank == 0:
            kinds |= {_kind_of_term(step, term) for term in terms_of(tensor)}
        elif operation.type in ("Mean", "Sum"):
            reduced = operation.inputs[0]  # may be integers, as of a mask that is counted
            if not joins_samples(operation):
                left.append(reduced)
            elif have_moved(reduced) or not may_have_samples(step, reduced):
                return UNKNOWN
            elif operation.type == "Mean":
                kinds.add(MIXED if selects_samples(reduced) else MEAN)
            else:
                kinds.add(SUM)
        elif operation.type in _PRODUCTS:
            first, second = operation.inputs
            divides = operation.type != "Mul"
            factors = [] if _is_alike(step, first) else [first]
            factors += [] if _is_alike(step, second, divides) else [second]
            by_samples = divides and _may_be_size(step, second)
            kinds |= {MIXED} if by_samples or len(factors) > 1 else set()
            left += factors[:1] if by_samples else factors
        elif operation.type in _OF_THE_SAME:
            # Other inputs that are no floats are sizes and axes.
            left += operation.inputs if operation.type == "Cast" else values
        elif operation.type in ELEMENTWISE:
            kinds.add(MIXED)
            left += values
        elif compares_samples(step, operation):
            kinds.add(MIXED)
        else:
            return UNKNOWN
    if len(kinds) > 1:
        return MIXED
    return kinds.pop() if kinds else MEAN


def _is_alike(step: ReplicaStep, tensor: tf.Tensor, divides: bool = False) -> bool:
    """Whether a tensor is the same on all replicas: numbers and variables, also captured ones."""
    if tensor.shape.rank == 0:
        return is_fixed(tensor, divides)
    outside = compat.captured_tensor(tensor) if tensor.op.type == "Placeholder" else None
    if isinstance(outside, tf.Tensor) and outside.dtype != tf.resource:
        return not tf.is_symbolic_tensor(outside) and not may_have_samples(step, tensor)
    return is_constant(tensor)


def _may_be_size(step: ReplicaStep, divisor: tf.Tensor) -> bool:
    """Whether a divisor may be the number of the samples."""
    if not _is_alike(step, divisor, divides=True):
        return True
    is_known = step.samples is not None and divisor.shape.rank == 0
    return is_known and number_in(divisor) == step.samples


def _kind_of_term(step: ReplicaStep, term: Term) -> str:
    kind = kind_of(step, term)
    if kind in (UNKNOWN, SELECTION, RATIO, BY_SAMPLES):
        return MIXED
    return SUM if kind == SUM else MEAN


def _warn(step: ReplicaStep, loss: tf.Tensor, taken_for: str) -> None:
    if step.replicas == 1 or step.apart is not None:
        return
    samples = "an open number of" if step.samples is None else step.samples
    warnings.warn(
        "It cannot be told whether the target of a gradient has values of samples, or is made of "
        f"losses that are means over the samples. It is taken for {taken_for}, and training may "
        "not equal that on one device. Take the gradient of a scalar, as of "
        "`tf.reduce_mean(per_sample_loss)`, or of a list of scalars. Received: a target of the "
        f"shape {loss.shape}, with {samples} samples",
        stacklevel=2,
    )
