"""What a term of a loss in a Keras step adds up: the samples of the replica, or something else."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from tfdist.step.loss_tags import LOSS, PART, is_sum
from tfdist.step.loss_terms import (
    CONSTANT,
    MEAN,
    SUM,
    UNKNOWN,
    Term,
    elementwise_beneath,
    is_fixed,
    terms_of,
    terms_of_call,
)
from tfdist.step.replica import ReplicaStep
from tfdist.step.sizes import (
    OTHER_ORDERS,
    counts_chosen,
    have_moved,
    is_size,
    joins_samples,
    reduces_samples,
    selects_samples,
    without_bound,
)

SELECTION = "a mean over chosen values"
RATIO = "a sum or mean over another one"
BY_SAMPLES = "a global sum over the number of the replica's samples"

_SAME_ELEMENTS = ("Cast", "Identity", "Neg")
_OTHER_SHAPES = (*_SAME_ELEMENTS, "ExpandDims", "Reshape", "Squeeze", "Transpose")
_QUOTIENTS = ("RealDiv", "DivNoNan")
_EXTREMES = ("Max", "Min", "Prod")


def kind_of(step: ReplicaStep, term: Term) -> str:
    """What a term is in a Keras step.

    Returns:
        SUM for a sum over the samples; SELECTION for a mean over values whose number depends on
        the data; RATIO for a quotient of scalars; BY_SAMPLES for a Keras loss with the reduction
        "sum", divided by the number of samples; UNKNOWN where tfdist cannot tell; else the term's
        own kind.
    """
    operation = term.tensor.op
    if term.kind in (MEAN, SUM) and operation.type in ("Mean", "Sum"):
        beneath = elementwise_beneath(operation.inputs[0])
        if any(compares_samples(step, one) for one in beneath):
            return UNKNOWN
    if term.kind == PART or _adds_samples(step, term):
        return SUM
    if operation.type == "Mean" and selects_samples(operation.inputs[0]):
        return SELECTION
    if term.kind == UNKNOWN and operation.type in _QUOTIENTS:
        return _kind_of_quotient(step, *operation.inputs)
    if term.kind == UNKNOWN and is_size(term.tensor):
        return CONSTANT if is_fixed(term.tensor) else SUM
    if operation.type in ("Sum", "Mean") and _decisive(step, operation).type == "Mean":
        return UNKNOWN if selects_samples(_decisive(step, operation).inputs[0]) else MEAN
    if term.kind == LOSS and is_sum(term.tensor) and divides_by_samples(step, term):
        return BY_SAMPLES
    return UNKNOWN if term.kind == SUM else term.kind


def _kind_of_quotient(step: ReplicaStep, numerator: tf.Tensor, denominator: tf.Tensor) -> str:
    denominator, _ = without_bound(denominator)
    if not is_size(denominator) or counts_chosen(denominator):
        return RATIO
    terms = terms_of(numerator)
    sums = {term.kind == LOSS and is_sum(term.tensor) for term in terms}
    if True in sums:
        return BY_SAMPLES if sums == {True} else UNKNOWN
    # A sum over the samples, divided by their number, is a mean; nothing else is.
    return MEAN if {kind_of(step, term) for term in terms} <= {SUM, UNKNOWN} else RATIO


def divides_by_samples(step: ReplicaStep, term: Term) -> bool:
    """Whether a number by which a term is divided may be that of the replica's samples."""
    return step.samples is not None and float(step.samples) in term.divisors


def _adds_samples(step: ReplicaStep, term: Term) -> bool:
    """Whether a term adds up values along the dimension of the replica's samples."""
    operation = term.tensor.op
    inner = terms_of_call(term.tensor)
    if inner:
        adding = [one for one in inner if one.kind != CONSTANT]
        return bool(adding) and all(_adds_samples(step, one) for one in adding)
    if operation.type not in ("Sum", "Mean", "L2Loss"):
        return False
    decisive = _decisive(step, operation)
    if decisive.type == "Mean" or (decisive is operation and term.kind != SUM):
        return False
    reduced = decisive.inputs[0]
    if decisive is operation:
        reduced = _beneath(reduced, _OTHER_SHAPES)
    if reduced.shape.rank is None or not may_have_samples(step, reduced):
        return False
    return not any(_mixes_dimensions(beneath) for beneath in elementwise_beneath(reduced))


def _decisive(step: ReplicaStep, operation: tf.Operation) -> tf.Operation:
    """The reduction over the samples: `operation`, or an earlier one whose result it adds up."""
    while operation.type in ("Sum", "Mean"):
        inner = _beneath(operation.inputs[0], _SAME_ELEMENTS).op
        if inner.type not in ("Sum", "Mean") or not reduces_samples(inner):
            break
        if not may_have_samples(step, inner.inputs[0]):
            break
        operation = inner
    return operation


def may_have_samples(step: ReplicaStep, tensor: tf.Tensor) -> bool:
    """Whether the first dimension of a tensor may be that of the replica's samples."""
    return bool(tensor.shape.rank) and tensor.shape[0] in (None, step.samples)


def compares_samples(step: ReplicaStep, operation: tf.Operation) -> bool:
    """Whether an operation finds the largest or smallest of the samples' values, or multiplies all.

    Args:
        step: the step that is running.
        operation: any operation of its graph.
    """
    if operation.type not in _EXTREMES or not joins_samples(operation):
        return False
    values = operation.inputs[0]
    return may_have_samples(step, values) and not have_moved(values)


def _beneath(tensor: tf.Tensor, types: tuple[str, ...]) -> tf.Tensor:
    while tensor.op.type in types:
        tensor = tensor.op.inputs[0]
    return tensor


def _mixes_dimensions(operation: tf.Operation) -> bool:
    """Whether the first dimension of the result may differ from that of the inputs.

    An example is a matrix of correlations between features.
    """
    if operation.type == "MatMul":
        is_transposed = operation.get_attr("transpose_a")
        return is_transposed or operation.inputs[0].op.type in OTHER_ORDERS
    if operation.type == "Pack":
        return operation.get_attr("axis") in (0, -operation.outputs[0].shape.rank)
    if operation.type == "ConcatV2":  # losses of shape (1,)
        return all(joined.shape[:1] == [1] for joined in operation.inputs[:-1])
    return operation.type in OTHER_ORDERS


def parts_of_quotient(term: Term) -> tuple[Term, tf.Tensor]:
    """The numerator of a term, as a term with the same factors, and the denominator."""
    numerator, denominator = term.tensor.op.inputs
    return dataclasses.replace(term, tensor=numerator), denominator
