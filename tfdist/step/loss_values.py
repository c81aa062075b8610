"""Losses that are no scalars: one value for each sample, or several losses in one tensor.

The gradient of one value for each sample is a sum over the samples. The gradient of several losses
in one tensor is the sum of theirs, each of which may be a mean over the samples.
"""

from __future__ import annotations

import warnings

import tensorflow as tf

from tfdist.step.loss_reductions import kind_of, may_have_samples
from tfdist.step.loss_terms import MEAN, SUM, UNKNOWN, terms_of
from tfdist.step.replica import ReplicaStep
from tfdist.step.sizes import have_moved, reduces_samples

# What they return consists of the values of their inputs, or of products and sums of these.
_OF_THE_SAME = {
    *("Add", "AddN", "AddV2", "Cast", "ConcatV2", "DivNoNan", "ExpandDims", "Identity"),
    *("Mul", "Neg", "Pack", "RealDiv", "Reshape", "Squeeze", "StridedSlice", "Sub"),
}
_QUOTIENTS = ("DivNoNan", "RealDiv")


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
    if loss.shape.rank is None or None in loss.shape.as_list():
        return True
    is_symbolic = tf.is_symbolic_tensor(loss)
    kind = _kind(step, loss) if is_symbolic else UNKNOWN
    if kind != UNKNOWN:
        return kind == SUM
    first, values, samples = loss.shape[0], loss.shape.num_elements(), step.samples
    if samples is not None and first == samples:
        if values == 1 and not is_symbolic:
            _warn(step, loss, "is taken for the value of the replica's one sample")
        return True
    if first == 1:
        return False
    if samples is not None and samples > 1 and values % samples == 0:
        return True  # as many for each sample
    # Values of pairs of samples, or losses that happen to be so many.
    is_of_groups = is_symbolic and samples is not None and first > 0 and samples % first == 0
    of_what = "samples" if is_of_groups else "several losses, each a mean over the samples"
    _warn(step, loss, f"is taken for values of {of_what}")
    return is_of_groups


def _kind(step: ReplicaStep, loss: tf.Tensor) -> str:
    """SUM or MEAN if the graph shows that each value is one over the samples; else UNKNOWN.

    What does not depend on the samples, such as a variable, counts as a mean.
    """
    left, seen, kinds = [loss], set(), set()
    while left:
        tensor = left.pop()
        if tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        operation = tensor.op
        if tensor.shape.rank == 0:
            is_sum = any(kind_of(step, term) == SUM for term in terms_of(tensor))
            kinds.add(SUM if is_sum else MEAN)
        elif operation.type in ("Mean", "Sum") and reduces_samples(operation):
            reduced = operation.inputs[0]
            if have_moved(reduced) or not may_have_samples(step, reduced):
                return UNKNOWN
            kinds.add(SUM if operation.type == "Sum" else MEAN)
        elif operation.type in _QUOTIENTS and tf.get_static_value(operation.inputs[1]) is None:
            return UNKNOWN  # the divisor may be the number of the samples
        elif operation.type in _OF_THE_SAME:
            is_cast = operation.type == "Cast"  # other inputs that are no floats are sizes and axes
            left += [one for one in operation.inputs if one.dtype.is_floating or is_cast]
        elif operation.type not in ("Const", "ReadVariableOp"):
            return UNKNOWN
    if len(kinds) > 1:
        return UNKNOWN
    return kinds.pop() if kinds else MEAN


def _warn(step: ReplicaStep, loss: tf.Tensor, taken_for: str) -> None:
    if step.replicas == 1 or step.apart is not None:
        return
    warnings.warn(
        "It cannot be told whether the target of a gradient has values of samples, or is made of "
        f"losses that are means over the samples. It {taken_for}, and training may not equal that "
        "on one device. Take the gradient of a scalar, as of `tf.reduce_mean(per_sample_loss)`, or "
        f"of a list of scalars. Received: a target of the shape {loss.shape}, with "
        f"{'an open number of' if step.samples is None else step.samples} samples",
        stacklevel=2,
    )
