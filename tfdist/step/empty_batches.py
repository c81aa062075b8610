"""What a replica without samples computes, where Keras or TensorFlow cannot do without any.

In eager execution Keras sees batches of no sample, as tensors of shape (0, n). In functions it does
not: `data/batches.py` hides the size.
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
    """`x1 + x2`, where Keras would take a tensor of no sample for a bias."""
    if replica.current() is None or not _is_empty(x2):
        return add(x1, x2)
    return subtract(x1, x2)  # of nothing it is the same, by Keras' dtypes too


def least(x: Any) -> Any:
    """What the maximum of `x` is where it is empty; None for another."""
    return x.dtype.min if replica.current() is not None and _is_empty(x) else None


def greatest(x: Any) -> Any:
    """What the minimum of `x` is where it is empty; None for another."""
    return x.dtype.max if replica.current() is not None and _is_empty(x) else None


def with_a_sample(compute: Callable[[tf.Tensor], tf.Tensor], inputs: Any) -> Any:
    """`compute(inputs)`, which never sees a batch without samples.

    It gets one of zeros, of which no result is used.
    """
    step = replica.current()
    if step is None or step.replicas == 1 or isinstance(inputs, keras.KerasTensor):
        return compute(inputs)
    return _unless_empty(compute, tf.convert_to_tensor(inputs))


def _unless_empty(function: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """`function(inputs)`; where `inputs` are no sample, what it makes of one, without that one."""

    def of_one_sample() -> tf.Tensor:
        zeros = tf.zeros(tf.concat([[1], tf.shape(inputs)[1:]], 0), inputs.dtype)
        zeros.set_shape([1, *inputs.shape[1:]])
        # Not `tf.pad`: oneDNN takes it for padding of the convolution, and ignores this dimension.
        return function(tf.concat([inputs, zeros], 0))[:0]

    if inputs.shape[0] is not None:
        return function(inputs) if inputs.shape[0] else of_one_sample()
    is_empty = tf.equal(tf.shape(inputs)[0], 0)
    return tf.cond(is_empty, of_one_sample, lambda: function(inputs))
