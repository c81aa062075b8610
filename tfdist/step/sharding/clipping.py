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
        norm = tf.sqrt(tf.reduce_sum(_squares(parts)))
        factor = optimizer.global_clipnorm / tf.maximum(norm, optimizer.global_clipnorm)
        # As in Keras, a norm that is not finite makes all gradients NaN.
        factor += norm - norm
        # And sparse gradients become dense, which adds up rows that come twice.
        return [_times(tf.convert_to_tensor(part), factor) for part in parts]
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


def _squares(parts: list[Value]) -> tf.Tensor:
    """The sum of the squares of each gradient's elements, float32 or wider, `[len(parts)]`."""
    values = [part.values if isinstance(part, tf.IndexedSlices) else part for part in parts]
    wide = tf.float64 if any(value.dtype == tf.float64 for value in values) else tf.float32
    own = tf.stack([tf.reduce_sum(tf.square(tf.cast(value, wide))) for value in values])
    return all_reduce([own])[0]


def _times(part: Value, factor: tf.Tensor) -> Value:
    factor = tf.cast(factor, part.dtype)
    if isinstance(part, tf.IndexedSlices):
        return tf.IndexedSlices(part.values * factor, part.indices, part.dense_shape)
    return part * factor
