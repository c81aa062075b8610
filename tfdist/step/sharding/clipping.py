"""Stage 4 in sharded training: clip by norms of gradients of which each replica has a part."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.engines.contract import Value
from tfdist.step.exchange import all_reduce


def clip_parts(optimizer: keras.optimizers.Optimizer, parts: list[Value]) -> list[Value]:
    """What `optimizer` makes of the whole gradients, for their parts; in replica context.

    The replicas sum the squares of each gradient's parts: one number per gradient travels.

    Args:
        optimizer: has `clipnorm`, `global_clipnorm`, `clipvalue`, or none of them.
        parts: this replica's parts of the gradients: tensors and `tf.IndexedSlices`.
    """
    if optimizer.clipnorm and optimizer.clipnorm > 0:
        norms = tf.unstack(tf.sqrt(_squares(parts)), num=len(parts))
        return [
            _times(part, optimizer.clipnorm / tf.maximum(norm, optimizer.clipnorm))
            for part, norm in zip(parts, norms)
        ]
    if optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        squares = tf.reduce_sum(_squares(parts))
        return _clipped_together(optimizer.global_clipnorm, parts, squares)
    if optimizer.clipvalue and optimizer.clipvalue > 0:
        most = optimizer.clipvalue
        return [
            tf.IndexedSlices(
                tf.clip_by_value(part.values, -most, most), part.indices, part.dense_shape
            )
            if isinstance(part, tf.IndexedSlices)
            else tf.clip_by_value(part, -most, most)
            for part in parts
        ]
    return parts


def clip_whole(
    optimizer: keras.optimizers.Optimizer, gradients: list[Value | None], wide: tf.DType
) -> list[Value | None]:
    """As `clip_parts` by `global_clipnorm`, for the whole gradients of a replica's own variables.

    Each norm of one gradient is known to its owner, so only the sum of the squares travels. The
    optimizer itself will divide the gradients by its `loss_scale_factor`, so they may be larger.

    Args:
        optimizer: has `global_clipnorm`.
        gradients: those of this replica; it may have none. None stays None.
        wide: the dtype in which squares are summed, the same on all replicas.
    """
    own = [gradient for gradient in gradients if gradient is not None]
    squares = tf.reduce_sum(tf.stack([tf.zeros([], wide), *_own_squares(own, wide)]))
    total = all_reduce([tf.reshape(squares, [1])])[0][0]
    most = optimizer.global_clipnorm * (optimizer.loss_scale_factor or 1.0)
    clipped = iter(_clipped_together(most, own, total))
    return [None if gradient is None else next(clipped) for gradient in gradients]


def _clipped_together(most: float, parts: list[Value], squares: tf.Tensor) -> list[Value]:
    """Gradients clipped to a norm of `most`, whose squares come to `squares` together."""
    norm = tf.sqrt(squares)
    factor = most / tf.maximum(norm, most)
    # As in Keras, a norm that is not finite makes all gradients NaN.
    factor += norm - norm
    # And sparse gradients become dense, which adds up rows that come twice.
    return [_times(tf.convert_to_tensor(part), factor) for part in parts]


def _squares(parts: list[Value]) -> tf.Tensor:
    """The sum of the squares of each gradient's elements, float32 or wider, `[len(parts)]`."""
    wide = tf.float64 if any(part.dtype == tf.float64 for part in parts) else tf.float32
    return all_reduce([tf.stack(_own_squares(parts, wide))])[0]


def _own_squares(parts: list[Value], wide: tf.DType) -> list[tf.Tensor]:
    values = [part.values if isinstance(part, tf.IndexedSlices) else part for part in parts]
    return [tf.reduce_sum(tf.square(tf.cast(value, wide))) for value in values]


def _times(part: Value, factor: tf.Tensor) -> Value:
    factor = tf.cast(factor, part.dtype)
    if isinstance(part, tf.IndexedSlices):
        return tf.IndexedSlices(part.values * factor, part.indices, part.dense_shape)
    return part * factor
