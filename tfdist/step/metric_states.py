"""What metrics count on a replica without samples: nothing.

The mean over no samples is NaN. Metrics are summed over the replicas, so a NaN that one replica has
added would be the result of the whole epoch.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from tfdist.step import replica
from tfdist.structures import Structure

_COUNTS_EMPTY = contextvars.ContextVar("counts empty parts", default=False)


@contextlib.contextmanager
def also_empty() -> Iterator[None]:
    """In this context metrics count what they are given also on a replica without samples."""
    token = _COUNTS_EMPTY.set(True)
    try:
        yield
    finally:
        _COUNTS_EMPTY.reset(token)


def unless_empty(variable: keras.Variable, value: Structure) -> Structure:
    """What a metric's variable becomes where a step assigns `value`.

    This is `value`. On a replica without samples the variable stays what it is, unless the metric
    begins anew, or counts `also_empty` parts.
    """
    step = replica.current()
    if step is None or step.share.nonempty is None or _COUNTS_EMPTY.get():
        return value
    if step.is_eager and not tf.executing_eagerly():
        return value  # TensorFlow keeps such a function, with the first step's sizes in it
    new = tf.convert_to_tensor(value, dtype_hint=variable.dtype)
    if _begins_anew(new) or not new.shape.is_compatible_with(variable.shape):
        return value  # Keras refuses another shape
    old = tf.cast(variable.value, new.dtype)
    return tf.where(step.share.nonempty > 0, new, old)


def _begins_anew(value: tf.Tensor) -> bool:
    """Whether `value` is set by `reset_state`: it was not computed from samples.

    In functions, such a value is known while they are traced. In eager steps every value is known,
    and only zeros are taken for it.
    """
    known = tf.get_static_value(value)
    return known is not None and not (tf.executing_eagerly() and np.any(known))
