"""What several compressors compute: largest magnitudes, means, random rounding."""

from __future__ import annotations

import tensorflow as tf


def largest(x: tf.Tensor, axis: int | None = None) -> tf.Tensor:
    """The largest magnitude; NaN if there is a NaN, which TensorFlow's maximum may overlook.

    Args:
        x: float32.
        axis: as for `tf.reduce_max`; the axis stays, with length 1. None for a scalar.
    """
    magnitudes = tf.abs(x)
    keep = axis is not None
    found = tf.reduce_max(magnitudes, axis, keepdims=keep)
    known = tf.reduce_all(tf.equal(x, x), axis, keepdims=keep)
    return tf.where(known, found, float("nan"))


def quotient(x: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    """`x / scale`, and 0 where the scale is 0 or so small that the result may be no number."""
    usable = tf.math.logical_not(scale < 1e-37)
    return tf.where(usable, x * (1.0 / tf.where(usable, scale, 1.0)), 0.0)


def mean_magnitude(x: tf.Tensor, axis: int | None = None) -> tf.Tensor:
    """The mean magnitude, along `axis` or of all. It is right even if the sum would overflow."""
    scale = largest(x)
    return tf.reduce_mean(tf.abs(quotient(x, scale)), axis) * scale


def round_randomly(x: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """One of the two whole numbers around `x`, at random, so that the mean is `x`."""
    return tf.floor(x + tf.random.stateless_uniform(tf.shape(x), seed))
