"""Keras' losses and means in a replica's step: the right divisors, and no factor 1/replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.engines.current import current
from tfdist.step import (
    clock,
    loss_sums,
    loss_tags,
    metric_states,
    own_loops,
    replica,
    weighting,
)
from tfdist.step.sizes import selects_samples
from tfdist.structures import Structure


def scaled(scale: Callable, loss: Structure) -> Any:
    """The loss that is differentiated: not divided by the number of replicas."""
    return scale(loss) if replica.current() is None else loss


def unscaled(unscale: Callable, loss: Structure) -> Any:
    """The loss that is reported: a mean over the replica's samples, zero where there are none."""
    step = replica.current()
    if step is None:
        return unscale(loss)
    if not step.own_loop:
        loss = loss_sums.as_mean(step, tf.convert_to_tensor(loss))
    if step.share.nonempty is not None:
        loss = tf.math.multiply_no_nan(loss, tf.cast(step.share.nonempty, loss.dtype))
    return loss


def reduced(
    reduce: Callable,
    values: Structure,
    sample_weight: Structure,
    mask: Structure,
    reduction: str | None,
    dtype: tf.DType | str | None,
) -> Any:
    """The reduced values of a loss, with the divisor that one device has for the global batch."""
    loss = reduce(values, sample_weight, mask, reduction, dtype)
    step = replica.current()
    is_scalar = len(getattr(values, "shape", ())) == 0
    if step is None or reduction in (None, "none") or is_scalar:
        return loss
    loss = tf.reduce_sum(loss)  # to a scalar: without samples Keras returns an empty vector
    weights = mask if reduction in ("mean", "sum_over_batch_size") else None
    if reduction == "mean_with_sample_weight":
        weights = compat.masked_weights(sample_weight, mask, reduction)
    normalizer = None if weights is None else tf.reduce_sum(tf.cast(weights, tf.float32))
    if normalizer is None and reduction != "sum" and _are_chosen(step, values):
        normalizer = tf.cast(tf.size(values), tf.float32)
        if step.share.nonempty is not None:
            normalizer *= step.share.nonempty
    normalizers = None
    if normalizer is not None:
        _check_normalizer(reduction, mask is not None, step)
        own = tf.stop_gradient(normalizer)
        (total,) = clock.waiting(step, lambda: current().all_reduce([own]))
        normalizers = own, total
    loss = weighting.with_global_normalizer(step.share, loss, reduction, normalizers)
    if reduction == "sum":
        loss_tags.mark_sum(loss)
    return loss_tags.tag(loss, loss_tags.LOSS)


def _check_normalizer(reduction: str, masked: bool, step: replica.ReplicaStep) -> None:
    """Raises ValueError for a loss that needs sums over the replicas, if they cannot exchange."""
    if step.replicas > 1 and not step.exchanges:
        raise ValueError(
            "The workers of a parameter server cannot sum what this loss is divided by, the "
            "unmasked values or the sample weights of all parts of the batch. Use the reduction "
            "'sum', another policy than Synchronous, or another strategy. Received: a loss with "
            f"reduction={reduction!r}{' and a mask' if masked else ''} on {step.replicas} workers"
        )


def _are_chosen(step: replica.ReplicaStep, values: Structure) -> bool:
    """Whether it depends on the data how many values of a loss a replica has, or may do so."""
    if step.replicas == 1 or not isinstance(values, tf.Tensor):
        return False
    return not tf.is_symbolic_tensor(values) or selects_samples(values)


@contextlib.contextmanager
def counted(values: Structure) -> Iterator[tuple[Any, Any]]:
    """What a `Mean` counts without a `sample_weight`, and the weight: a scalar has its part's.

    Such a scalar is a mean over the replica's part of the batch. Users' train steps track their
    loss in this way, and Keras tracks the losses of several outputs. The weights of all replicas
    add up to 1, so each step counts equally, whatever the number of replicas in it. A part of a
    global sum, in a loop of the user's own, counts as it is, also where it has no samples.

    Yields:
        The values, and their weight; None for values that count as they are.
    """
    step = replica.current()
    if step is not None:
        values = tf.convert_to_tensor(values)
    if step is None or values.shape.rank != 0 or not values.dtype.is_floating:
        yield values, None
    elif step.own_loop and own_loops.is_part_of_sum(step, values):
        with metric_states.also_empty():
            yield values, None
    else:
        yield _with_weight(step, values)


def _with_weight(step: replica.ReplicaStep, values: tf.Tensor) -> tuple[tf.Tensor, Any]:
    if not step.own_loop:
        values = loss_sums.as_mean(step, values)
    if step.share.nonempty is not None:
        values = tf.math.multiply_no_nan(values, tf.cast(step.share.nonempty, values.dtype))
    return values, step.reported_share.fraction
