"""Variables of replicas that train apart: counted together, or each replica's own."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf


def counter(name: str, shape: Sequence[int] = ()) -> tf.Variable:
    """A variable that counts what all replicas count together."""
    return tf.Variable(
        tf.zeros(shape, tf.int64),
        trainable=False,
        aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        name=name,
    )


def count_of_each(name: str, dtype: tf.DType, shape: Sequence[int] = ()) -> tf.Variable:
    """A variable that counts what each replica counts for itself."""
    return tf.Variable(
        tf.zeros(shape, dtype),
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
        name=name,
    )


def like(variable: keras.Variable, name: str) -> tf.Variable:
    """A variable of the shape and dtype of `variable`, of which each replica has its own."""
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False, name=name)
