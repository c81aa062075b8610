"""Stage 1: weight what a replica computes by its share of the global batch.

Say replica r has n_r of the n samples in the global batch. The gradient of the global mean loss is
then the sum over the replicas of (n_r / n) times the gradient of the local mean loss. This holds
for uneven, tiny and empty parts alike. A loss needs one more factor if it is divided by something
other than the number of samples (a mask, the sum of the sample weights) or by nothing (reduction
"sum").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdist.structures import Structure


@dataclasses.dataclass(frozen=True)
class Share:
    """A replica's share of the global batch.

    Attributes:
        fraction: n_r / n, a float or a float32 scalar tensor.
        nonempty: 1.0 where the replica has samples and 0.0 where it has none, a float32 scalar
            tensor; None where every replica is known to have samples.
    """

    fraction: float | tf.Tensor
    nonempty: tf.Tensor | None = None


def even_share(replicas: int) -> Share:
    """The share of each of `replicas` replicas that have equally many samples."""
    return Share(fraction=1.0 / replicas)


def share_of(samples: tf.Tensor, all_samples: tf.Tensor) -> Share:
    """The share of a replica with `samples` of the `all_samples` in the global batch."""
    fraction = tf.math.divide_no_nan(tf.cast(samples, tf.float32), tf.cast(all_samples, tf.float32))
    return Share(fraction=fraction, nonempty=tf.cast(samples > 0, tf.float32))


def batch_size(data: Structure) -> int | tf.Tensor | None:
    """The number of samples in a local batch: the first dimension of its first tensor.

    Args:
        data: a structure of tensors; dense, ragged or sparse.

    Returns:
        An int where the shape is static, else an int scalar tensor; None without such a tensor.
    """
    for leaf in tf.nest.flatten(data):
        if isinstance(leaf, tf.RaggedTensor):
            return leaf.nrows()
        if isinstance(leaf, tf.SparseTensor):
            return leaf.dense_shape[0]
        if hasattr(leaf, "shape") and leaf.shape.rank != 0:
            static = leaf.shape[0] if leaf.shape.rank else None
            return static if static is not None else tf.shape(leaf)[0]
    return None


def static_batch_size(data: Structure) -> int | None:
    """The number of samples in a local batch as `batch_size`, if it is static; else None.

    Where the shape of a ragged or sparse tensor does not tell it, that of the next tensor may do.
    """
    for leaf in tf.nest.flatten(data):
        if hasattr(leaf, "shape") and leaf.shape.rank != 0:
            static = leaf.shape[0] if leaf.shape.rank else None
            if static is not None or isinstance(leaf, tf.Tensor):
                return static
    return None


def with_global_normalizer(
    share: Share,
    loss: tf.Tensor,
    reduction: str | None,
    normalizers: tuple[tf.Tensor, tf.Tensor] | None,
) -> tf.Tensor:
    """Turns a loss normalised over the local batch into one normalised over the global batch.

    The sum over replicas of share times result is the global loss. The mean over replicas, weighted
    by their numbers of samples, is the global loss too; Keras reports this mean.

    Args:
        share: this replica's share.
        loss: what the Keras loss returned, a scalar, or a vector with reduction "none".
        reduction: the reduction of the Keras loss.
        normalizers: float32 scalars, the divisor of the local mean and the sum of these divisors
            over the replicas; None where the divisor is the local number of samples.

    Returns:
        A tensor of the shape and dtype of `loss`.
    """
    fraction = tf.cast(share.fraction, loss.dtype)
    if reduction == "sum":
        return tf.math.divide_no_nan(loss, fraction)
    if normalizers is None:
        return loss
    local, total = normalizers
    factor = tf.math.divide_no_nan(local, total * share.fraction)
    return loss * tf.cast(factor, loss.dtype)


def factor_of_sum(loss: tf.Tensor, share: Share) -> tf.Tensor:
    """The factor of the gradient of `loss` that makes the share right, which is meant for means.

    If a loss has one value for each sample, its gradient is a sum over the samples, not a mean.

    Args:
        loss: a floating-point tensor of values that add up over the samples.
        share: the replica's share.

    Returns:
        A tensor with the shape and dtype of the loss, of values 1 / `share.fraction`.
    """
    fraction = tf.cast(share.fraction, loss.dtype)
    return tf.math.divide_no_nan(tf.ones_like(loss), fraction)


def of_samples(gradients: Iterable[Any], share: Share) -> list[Any]:
    """`gradients`, replaced by zeros on a replica without samples."""
    if share.nonempty is None:
        return list(gradients)
    return [None if g is None else weigh(g, share.nonempty) for g in gradients]


def weigh(gradient: tf.Tensor | tf.IndexedSlices, weight: float | tf.Tensor) -> Any:
    """`gradient` times `weight`; zero where the weight is zero, even if the gradient is NaN.

    A replica without samples has a NaN gradient wherever a mean over its batch was taken.
    """
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            weigh(gradient.values, weight), gradient.indices, gradient.dense_shape
        )
    if isinstance(weight, float):
        return gradient * tf.cast(weight, gradient.dtype)
    return tf.math.multiply_no_nan(gradient, tf.cast(weight, gradient.dtype))
