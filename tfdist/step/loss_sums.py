"""Sums over samples in the losses of Keras' steps, where a replica's share is meant for means.

The sum over replicas of share times loss is the loss of the global batch for a mean over the
samples. Of a sum over the samples it would be a fraction: it is divided by the share first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import tensorflow as tf

from tfdist.step import weighting
from tfdist.step.loss_tags import PART
from tfdist.step.loss_terms import SUM, Term, elementwise_beneath, terms_of
from tfdist.step.replica import ReplicaStep

_OTHER_ORDERS = ("Transpose", "Einsum")


def terms_with_sums(
    step: ReplicaStep, loss: tf.Tensor, sources: Collection[int] = ()
) -> list[tuple[Term, bool]]:
    """The terms of a loss, if it has a sum over samples.

    Args:
        step: the step that is running.
        loss: a tensor.
        sources: as for `loss_terms.terms_of`.

    Returns:
        Each term, and whether it is a sum over samples. Empty where no term is, and where no graph
        tells: in an eager step.
    """
    if tf.executing_eagerly() or loss.shape.rank != 0:
        return []
    terms = [(term, _adds_samples(step, term)) for term in terms_of(loss, sources)]
    return terms if any(is_sum for _, is_sum in terms) else []


def as_mean(step: ReplicaStep, loss: tf.Tensor) -> tf.Tensor:
    """`loss`, with what it has of sums over samples divided by the replica's share."""
    terms = terms_with_sums(step, loss)
    return tf.add_n([_as_mean(step, term, is_sum) for term, is_sum in terms]) if terms else loss


def factor(step: ReplicaStep, term: Term, is_sum: bool) -> tf.Tensor:
    """What `term.tensor` is multiplied by in `as_mean`, a scalar of its dtype."""
    number = tf.cast(term.coefficient(), term.tensor.dtype)
    if is_sum:
        return tf.math.divide_no_nan(number, tf.cast(step.share.fraction, number.dtype))
    return number


def _as_mean(step: ReplicaStep, term: Term, is_sum: bool) -> tf.Tensor:
    tensor = term.tensor if term.has_gradient else tf.stop_gradient(term.tensor)
    return weighting.weigh(tensor, factor(step, term, is_sum))


def _adds_samples(step: ReplicaStep, term: Term) -> bool:
    """Whether the first dimension of what a sum adds is that of the replica's samples."""
    if term.kind != SUM:
        return term.kind == PART
    operation = term.tensor.op
    if operation.type not in ("Sum", "L2Loss"):
        return False
    reduced = operation.inputs[0]
    if reduced.shape.rank is None or reduced.shape[0] not in (None, step.samples):
        return False
    return not any(_mixes_dimensions(beneath) for beneath in elementwise_beneath(reduced))


def _mixes_dimensions(operation: tf.Operation) -> bool:
    """Whether the first dimension of the result may be another than that of the inputs.

    As in a matrix of correlations between features.
    """
    if operation.type == "MatMul":
        is_transposed = operation.get_attr("transpose_a")
        return is_transposed or operation.inputs[0].op.type in _OTHER_ORDERS
    return operation.type in _OTHER_ORDERS


def term_factors(
    step: ReplicaStep, loss: tf.Tensor, sources: Collection[int]
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """What a tape differentiates in place of `loss`, each with a factor of its gradient."""
    for term, is_sum in terms_with_sums(step, loss, sources):
        if term.has_gradient:
            yield term.tensor, factor(step, term, is_sum)
