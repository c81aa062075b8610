"""The mean and the variance of the global batch, for synchronized BatchNormalization with a mask.

Keras synchronizes the layer only where there is no mask.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.step import replica


def of_global_batch(
    compute: Callable[[], tuple[tf.Tensor, tf.Tensor]],
    inputs: tf.Tensor,
    mask: tf.Tensor,
    axis: int,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The mean and the variance of what the mask leaves of the batch, over all replicas.

    The formulas are those of Keras, so that the result is the one of one device.

    Args:
        compute: computes them from this replica's part of the batch.
        inputs: floating-point tensor, float32 or wider.
        mask: has one dimension less than `inputs`; true where a position counts.
        axis: the dimension of the features.
    """
    step = replica.current()
    if step is None or step.replicas == 1:
        return compute()
    rank = len(inputs.shape)
    axes = [place for place in range(rank) if place != axis % rank]
    is_counted = tf.broadcast_to(tf.cast(mask, tf.bool)[..., tf.newaxis], tf.shape(inputs))

    def counted(values: tf.Tensor) -> tf.Tensor:
        return tf.where(is_counted, values, tf.zeros([], values.dtype))

    def total(values: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(values, axes, keepdims=True)

    number = total(tf.cast(is_counted, inputs.dtype))
    sum_of_inputs, number = _over_replicas(total(counted(inputs)), number)
    divisor = number + keras.config.epsilon()
    mean = sum_of_inputs / divisor
    # Not the mean of the squares minus the squared mean, which rounds more. So the replicas
    # exchange twice.
    (sum_of_squares,) = _over_replicas(total(tf.square(counted(inputs - mean))))
    return tf.squeeze(mean), tf.squeeze(sum_of_squares / divisor)


def _over_replicas(*values: tf.Tensor) -> list[tf.Tensor]:
    """The sums over the replicas. A gradient goes through them to all replicas."""
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, list(values))
