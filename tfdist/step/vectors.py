"""Vectors of which some elements change."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf


def with_value(vector: tf.Tensor, places: Sequence[int], value: int | tf.Tensor) -> tf.Tensor:
    """`vector` with another value at some places.

    Args:
        vector: of static length.
        places: the positions.
        value: a number, or a tensor of the vector's shape.
    """
    is_here = tf.constant([place in places for place in range(vector.shape[0])])
    return tf.where(is_here, tf.cast(value, vector.dtype), vector)
