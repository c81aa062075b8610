"""Sums over samples in the losses of Keras' steps, where a replica's share is meant for means.

If a loss is a mean over the samples, the sum over replicas of share times loss is the loss of the
global batch. If a loss is a sum over the samples, the share would make it too small, so the loss is
divided by the share first. If a loss is divided by a sum of its own, such as the sum of a mask, it
is divided by the sum over all replicas instead.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Collection, Iterator

import tensorflow as tf

from tfdist.engines.current import current
from tfdist.step import loss_tags, weighting
from tfdist.step.loss_reductions import (
    BY_SAMPLES,
    RATIO,
    SELECTION,
    kind_of,
    parts_of_quotient,
)
from tfdist.step.loss_terms import SUM, UNKNOWN, Term, terms_of
from tfdist.step.origins import depends_on
from tfdist.step.replica import ReplicaStep
from tfdist.step.sizes import without_bound


@dataclasses.dataclass(frozen=True)
class _Piece:
    """A tensor whose elements, times `factor`, are added to the loss."""

    tensor: tf.Tensor
    factor: tf.Tensor | float
    has_gradient: bool = True


def as_mean(step: ReplicaStep, loss: tf.Tensor, warns: bool = False) -> tf.Tensor:
    """`loss`, with its sums over samples divided by the replica's share.

    Args:
        step: the step that is running.
        loss: a tensor.
        warns: whether to warn where tfdist cannot tell what the value is.
    """
    pieces = _pieces(step, loss, warns=warns)
    if pieces is None:
        return loss
    total = tf.add_n([_added(piece, loss.dtype) for piece in pieces])
    return loss_tags.tag(total, loss_tags.LOSS)


def term_factors(
    step: ReplicaStep, loss: tf.Tensor, sources: Collection[int]
) -> Iterator[tuple[tf.Tensor, tf.Tensor]]:
    """The tensors that a tape differentiates in place of `loss`, each with its gradient's factor.

    Yields nothing where the loss can stay as it is.
    """
    for piece in _pieces(step, loss, sources, warns=True) or ():
        if piece.has_gradient:
            yield piece.tensor, _factor(piece) * tf.ones_like(piece.tensor)


def _factor(piece: _Piece) -> tf.Tensor:
    return tf.cast(piece.factor, piece.tensor.dtype)


def _added(piece: _Piece, dtype: tf.DType) -> tf.Tensor:
    tensor = tf.cast(piece.tensor, dtype)
    tensor = tensor if piece.has_gradient else tf.stop_gradient(tensor)
    return tf.reduce_sum(weighting.weigh(tensor, tf.cast(piece.factor, dtype)))


def _pieces(
    step: ReplicaStep, loss: tf.Tensor, sources: Collection[int] = (), warns: bool = False
) -> list[_Piece] | None:
    """The pieces whose sum is `loss`; None where the loss can stay as it is.

    The loss stays as it is if it consists of means. It also stays in an eager step, where no graph
    tells what the loss consists of.
    """
    if tf.executing_eagerly() or loss.shape.rank != 0:
        return None
    found = []
    for term in terms_of(loss, sources):
        kind = kind_of(step, term)
        pieces = _exact(step, term, kind, sources)
        is_unclear = pieces is None and kind in (UNKNOWN, RATIO)
        # A number may be that of the samples by chance.
        is_unclear = is_unclear or (kind == BY_SAMPLES and term.kind == loss_tags.LOSS)
        if is_unclear and warns and _may_be_of_samples(step, term):
            _warn(term)
        found.append((term, pieces))
    if all(pieces is None for _, pieces in found):
        return None
    return [piece for term, pieces in found for piece in pieces or [_piece(term)]]


def _may_be_of_samples(step: ReplicaStep, term: Term) -> bool:
    """Whether it matters that a term is neither a mean nor a sum for certain.

    A worker of a parameter server gets the weights as tensors, so a regularizer is not seen to be a
    function of weights only. But there the number of samples is never static.
    """
    if step.replicas == 1 or step.apart is not None:
        return False
    operation = term.tensor.op
    if step.exchanges or operation.type not in ("Sum", "L2Loss"):
        return True
    reduced = operation.inputs[0]
    return not reduced.shape.rank or reduced.shape[0] is None


def _exact(
    step: ReplicaStep, term: Term, kind: str, sources: Collection[int]
) -> list[_Piece] | None:
    if kind == SUM:
        return [_piece(term, step.share.fraction)]
    if kind == BY_SAMPLES:
        return [_piece(term, tf.math.reciprocal(tf.cast(step.share.fraction, tf.float32)))]
    if step.replicas > 1 and kind == SELECTION:
        values = term.tensor.op.inputs[0]
        counted = _over_replicas(step, tf.cast(tf.size(values), tf.float32))
        chosen = dataclasses.replace(term, tensor=values)
        return [_piece(chosen, counted * step.share.fraction)]
    if step.replicas > 1 and kind == RATIO:
        return _quotient(step, term, sources)
    return None


def _quotient(step: ReplicaStep, term: Term, sources: Collection[int]) -> list[_Piece] | None:
    """The numerator's terms over the denominator of all replicas; None if they are not known."""
    numerator, denominator = parts_of_quotient(term)
    denominator, bound = without_bound(denominator)
    if sources and depends_on(denominator, sources):
        return None
    below = _known(step, denominator, ())
    above = _known(step, numerator.tensor, sources)
    if below is None or above is None:
        return None
    of_replica = tf.add_n([_added(piece, tf.float32) for piece in below])
    divisor = _over_replicas(step, tf.math.multiply_no_nan(of_replica, step.share.fraction))
    if bound is not None:
        divisor = tf.maximum(divisor, bound)
    outer = tf.math.divide_no_nan(tf.cast(term.coefficient(), tf.float32), divisor)
    return [
        dataclasses.replace(
            piece,
            factor=tf.cast(piece.factor, tf.float32) * outer,
            has_gradient=piece.has_gradient and term.has_gradient,
        )
        for piece in above
    ]


def _known(step: ReplicaStep, scalar: tf.Tensor, sources: Collection[int]) -> list[_Piece] | None:
    """The pieces of a sum of sums, means and constants; None for a sum of anything else."""
    found = []
    for term in terms_of(scalar, sources):
        kind = kind_of(step, term)
        if kind in (UNKNOWN, RATIO, SELECTION, BY_SAMPLES):
            return None
        found.append(_piece(term, step.share.fraction if kind == SUM else 1.0))
    return found


def _piece(term: Term, divisor: float | tf.Tensor = 1.0) -> _Piece:
    factor = tf.math.divide_no_nan(
        tf.cast(term.coefficient(), tf.float32), tf.cast(divisor, tf.float32)
    )
    return _Piece(term.tensor, factor, term.has_gradient and term.tensor.dtype.is_floating)


def _over_replicas(step: ReplicaStep, value: tf.Tensor) -> tf.Tensor:
    if not step.exchanges:
        raise ValueError(
            "The workers of a parameter server cannot sum what this loss is divided by over all "
            "parts of the batch. Take the mean of one value for each sample, or use another policy "
            "than Synchronous, or another strategy. Received: a loss that is divided by a sum, or "
            f"a mean over chosen values, on {step.replicas} workers"
        )
    return current().all_reduce([value])[0]


def _warn(term: Term) -> None:
    warnings.warn(
        "It cannot be told whether a loss of this step is a mean over the samples or a sum, so "
        "it is taken for a mean over the replica's samples, and training may not equal that on "
        "one device. Take the mean or the sum of one value for each sample last, as in "
        "`tf.reduce_mean(per_sample_loss)`, or use a loss of `keras.losses`. Received: the result "
        f"of the operation {term.tensor.op.type}",
        stacklevel=2,
    )
