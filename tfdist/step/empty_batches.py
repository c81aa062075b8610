"""What a replica without samples computes, where Keras or TensorFlow needs samples.

In eager execution Keras sees a batch without samples as tensors of shape (0, n). In functions Keras
does not see the size: `data/batches.py` hides it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist.step import replica


def _is_empty(x: Any) -> bool:
    return isinstance(x, tf.Tensor) and bool(x.shape.rank) and x.shape[0] == 0


def add(add: Callable, subtract: Callable, x1: Any, x2: Any) -> Any:
    """`x1 + x2`, also where Keras would take an empty tensor for a bias."""
    if replica.current() is None or not _is_empty(x2):
        return add(x1, x2)
    return subtract(x1, x2)  # the result is empty either way, with the same dtype


def least(x: Any) -> Any:
    """The value to return as the maximum of an empty `x`; None if `x` is not empty."""
    return x.dtype.min if replica.current() is not None and _is_empty(x) else None


def greatest(x: Any) -> Any:
    """The value to return as the minimum of an empty `x`; None if `x` is not empty."""
    return x.dtype.max if replica.current() is not None and _is_empty(x) else None


def with_a_sample(compute: Callable[[tf.Tensor], tf.Tensor], inputs: Any) -> Any:
    """`compute(inputs)`, but `compute` never sees a batch without samples.

    In place of an empty batch it gets one sample of zeros, and the result of this sample is cut
    off.
    """
    step = replica.current()
    if step is None or step.replicas == 1 or isinstance(inputs, keras.KerasTensor):
        return compute(inputs)
    return _unless_empty(compute, tf.convert_to_tensor(inputs))


def _unless_empty(function: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """`function(inputs)`; for empty `inputs`, its result for one sample, without that sample."""

    def of_one_sample() -> tf.Tensor:
        zeros = tf.zeros(tf.concat([[1], tf.shape(inputs)[1:]], 0), inputs.dtype)
        zeros.set_shape([1, *inputs.shape[1:]])
        # Not `tf.pad`: oneDNN merges it into the convolution's padding and ignores this dimension.
        return function(tf.concat([inputs, zeros], 0))[:0]

    if inputs.shape[0] is not None:
        return function(inputs) if inputs.shape[0] else of_one_sample()
    is_empty = tf.equal(tf.shape(inputs)[0], 0)
    return tf.cond(is_empty, of_one_sample, lambda: function(inputs))
