"""Makes losses of users' own training loops this replica's part of the global loss.

In a step every loss is the mean over the replica's part of the batch, unless it was computed as a
part of a sum over all replicas (`tf.nn.compute_average_loss`). The share is applied in two places:
where gradients are taken, and to Keras losses that a step returns. The sum of these returned losses
over the replicas is the global loss.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step.loss_reductions import divides_by_samples
from tfdist.step.loss_tags import ADDED, LOSS, PART, SCALED, is_sum, tag_of
from tfdist.step.loss_terms import CONSTANT, MEAN, SUM, UNKNOWN, Term, terms_of
from tfdist.step.replica import ReplicaStep
from tfdist.structures import Gradient, Structure

_VARIABLES = (tf.Variable, keras.Variable)
_CHOICES = (
    "Say what it is: a loss of `keras.losses`, which also knows masks and sample weights; "
    "`tfdist.scale_loss(loss)` for a mean over the replica's samples; or "
    "`tf.nn.compute_average_loss(per_example_loss, global_batch_size=...)`."
)


def weigh_targets(
    step: ReplicaStep, targets: list, gradients: list, sources: list
) -> tuple[list, list]:
    """The tensors that a tape differentiates in place of `targets`, so that gradients add up.

    Args:
        step: the step that is running.
        targets: tensors.
        gradients: for each target a factor of its gradient, or None.
        sources: the tensors and variables by which the gradient is taken.

    Returns:
        Tensors, and for each tensor a factor of its gradient.

    Raises:
        ValueError: for a loss that may be a mean or a sum, where tfdist cannot tell which.
    """
    variables = [source for source in sources if isinstance(source, _VARIABLES)]
    found: list[tuple[Any, Any]] = []
    for target, gradient in zip(targets, gradients):
        if not _is_loss(target):
            found.append((target, gradient))
        elif not tf.executing_eagerly():
            found.extend(_weighted_terms(step, target, gradient, variables))
        elif variables:
            found.append((target, _weighted_eagerly(step, target, gradient)))
        else:
            found.append((target, gradient))
    return [target for target, _ in found], [gradient for _, gradient in found]


def _is_loss(value: Structure) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0


def _weighted_terms(
    step: ReplicaStep, target: tf.Tensor, gradient: Gradient, variables: list
) -> list[tuple[Any, Any]]:
    if step.is_eager and variables:
        raise ValueError(
            "The function of a replica was called eagerly, and takes its gradient in a "
            "`tf.function` of its own, which would keep the first batch's size. Put the "
            "`tf.function` around `strategy.run`. Received: a gradient inside an inner function"
        )
    terms = terms_of(target, {id(compat.resource_of(variable)) for variable in variables})
    if not variables and not any(term.kind in (LOSS, PART, SCALED) for term in terms):
        return [(target, gradient)]
    weighted = []
    for term, weight in zip(terms, _weights(step, terms, target)):
        if term.has_gradient:
            factor = tf.cast(term.coefficient() * weight, term.tensor.dtype)
            if gradient is not None:
                factor = factor * tf.cast(gradient, factor.dtype)
            weighted.append((term.tensor, factor))
    return weighted or [(target, gradient)]


def _weights(step: ReplicaStep, terms: list[Term], loss: tf.Tensor) -> list:
    """For each term, the weight that makes it this replica's part of the global loss.

    Raises:
        ValueError: where tfdist cannot tell the weight.
    """
    kinds = {term.kind for term in terms}
    _check_apart(step, kinds, loss)
    means = [term for term in terms if term.kind == MEAN]
    same = [term for term in terms if term.kind in (ADDED, CONSTANT)]
    divided = [term for term in same if term.has_factor(1.0 / step.replicas)]
    if UNKNOWN in kinds:
        raise ValueError(
            "It cannot be told whether this loss is a mean over the replica's samples, of which "
            "the gradient is weighted by the replica's share of the batch, or its part of a sum "
            f"over all samples. {_CHOICES} Received: {_named(terms, loss)}"
        )
    sums = [term for term in terms if term.kind == LOSS and is_sum(term.tensor)]
    if any(divides_by_samples(step, term) for term in sums):
        raise ValueError(
            'A Keras loss with the reduction "sum" is divided by the number of the replica\'s '
            "samples, but it stands for the sum over all replicas' samples. Take the reduction "
            f'"sum_over_batch_size" and do not divide it. {_CHOICES} Received: {loss.name}'
        )
    if means and all(term.has_factor(1.0 / step.replicas) for term in means):
        raise ValueError(
            f"This loss is a mean that is divided by {step.replicas}, the number of replicas, or "
            "has that for a weight. tfdist weights a mean by the replica's share of the batch, so "
            f"do not divide it; if a weight is meant, call `tfdist.scale_loss(loss)`. {_CHOICES} "
            f"Received: {loss.name}"
        )
    if divided and (kinds & {MEAN, LOSS} or not kinds & {PART, SUM, SCALED}):
        raise ValueError(
            f"A regularization loss is divided by {step.replicas}, the number of replicas, or has "
            "that for a weight. Add `model.losses` as they are, or pass them through "
            "`tf.nn.scale_regularization_loss`; multiply a weight of your own into the loss after "
            f"`tfdist.scale_loss(regularization)`. Received: {loss.name}"
        )
    # A replica without samples adds nothing, so the other replicas take over its part of the
    # regularization.
    by_replicas = step.share.fraction * step.replicas
    weights = []
    for term in terms:
        if term.kind in (PART, SUM):
            weights.append(1.0)
        else:
            is_divided = term.kind == SCALED or term in divided
            weights.append(by_replicas if is_divided else step.share.fraction)
    return weights


def _check_apart(step: ReplicaStep, kinds: set[str], loss: tf.Tensor) -> None:
    """Raises ValueError for a part of a global sum, where each replica trains apart."""
    if step.apart is not None and kinds & {PART, SUM, SCALED}:
        raise ValueError(
            "This loss is a part of a sum over all replicas, but with `local` each replica trains "
            "with its own samples until the end of the round: its loss would be too small. Take "
            "the mean over the replica's samples (`tf.reduce_mean`, a loss of `keras.losses`, or "
            "`tf.nn.compute_average_loss` without `global_batch_size`). "
            f"Received: {getattr(loss, 'name', None) or loss}, which is one of {sorted(kinds)}"
        )


def _named(terms: list[Term], loss: tf.Tensor) -> str:
    unknown = next(term.tensor for term in terms if term.kind == UNKNOWN)
    return f"{loss.name}, with {unknown.name}, the result of {unknown.op.type}"


def _weighted_eagerly(step: ReplicaStep, target: tf.Tensor, gradient: Gradient) -> Any:
    """The factor of a target's gradient, where no graph shows how the target was computed."""
    kind = tag_of(target)
    kinds = {kind} if kind else step.notes.seen - {ADDED}
    parts = {PART, SCALED} & kinds
    _check_apart(step, kinds, target)
    mixed = parts and (kinds - parts or ADDED in step.notes.seen)
    if not kinds or (mixed and not kind):
        raise ValueError(
            "Without a `tf.function` around `strategy.run`, it cannot be told what this loss is "
            "made of. Put one around it, or use one kind of loss only. "
            f"{_CHOICES} Received: a step with {sorted(kinds) or 'no such loss'}"
        )
    if parts:
        step.notes.empty_counts = True  # each replica has its part of a regularization loss
        return gradient
    step.notes.weighted_losses[id(target)] = target
    share = tf.cast(step.share.fraction, target.dtype)
    return share if gradient is None else share * tf.cast(gradient, share.dtype)


def weigh_returned(step: ReplicaStep, result: Structure) -> Any:
    """The result of a step, with each Keras loss turned into a part of the global loss.

    Args:
        step: the step that has run.
        result: what the step returned: any structure.
    """
    if not step.own_loop:
        return result
    step = dataclasses.replace(step, share=step.reported_share, apart=None)
    flat = tf.nest.flatten(result)
    if not any(_is_loss(value) for value in flat):
        return result
    weighted = [_part_of(step, value) if _is_loss(value) else value for value in flat]
    return tf.nest.pack_sequence_as(result, weighted)


def _part_of(step: ReplicaStep, loss: tf.Tensor) -> tf.Tensor:
    share = tf.cast(step.share.fraction, loss.dtype)
    if tf.executing_eagerly():
        is_mean = tag_of(loss) == LOSS or id(loss) in step.notes.weighted_losses
        return tf.math.multiply_no_nan(loss, share) if is_mean else loss
    terms = terms_of(loss)
    kinds = {term.kind for term in terms}
    if LOSS not in kinds or UNKNOWN in kinds:
        return loss
    weights = _weights(step, terms, loss)
    if not kinds & {PART, SUM, SCALED}:
        return tf.math.multiply_no_nan(loss, share)
    parts = [
        tf.math.multiply_no_nan(
            tf.cast(term.tensor, loss.dtype), tf.cast(term.coefficient() * weight, loss.dtype)
        )
        for term, weight in zip(terms, weights)
    ]
    return tf.add_n(parts)


def is_part_of_sum(step: ReplicaStep, value: tf.Tensor) -> bool:
    """Whether a scalar that a metric gets is a part of a global sum, not a mean over samples.

    Raises:
        ValueError: for a Keras loss times the number of replicas.
    """
    if tf.executing_eagerly():
        return tag_of(value) in (PART, SCALED) or (
            PART in step.notes.seen and LOSS not in step.notes.seen
        )
    terms = terms_of(value)
    losses = [term for term in terms if term.kind == LOSS]
    if losses and all(term.has_factor(float(step.replicas)) for term in losses):
        raise ValueError(
            f"A metric is given a Keras loss times {step.replicas}, the number of replicas. Under "
            "tfdist a Keras loss is the mean over the replica's samples, and `Mean` weights it by "
            f"their number: leave the factor out. Received: {value.name}"
        )
    kinds = {term.kind for term in terms}
    return bool(kinds & {PART, SUM, SCALED}) and not kinds & {LOSS, MEAN, UNKNOWN}
