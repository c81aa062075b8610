"""The sum of two gradients of one variable."""

from __future__ import annotations

import tensorflow as tf

from tfdist.structures import Gradient


def added(total: Gradient | None, value: Gradient) -> Gradient:
    """The sum of two gradients; None counts as nothing. Rows stay rows, one after the other."""
    if total is None:
        return value
    if isinstance(total, tf.IndexedSlices) and isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([total.values, value.values], axis=0),
            tf.concat([total.indices, value.indices], axis=0),
            value.dense_shape,
        )
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(value)
