"""Sparse gradients in which each row occurs once, as a step has looked up `tf.unique` numbers.

One device has one row for each number in the whole batch. N replicas have up to N of them, one
for each part of the batch. Keras' Adam would square each of them. So they are added up again.
"""

from __future__ import annotations

import tensorflow as tf

from tfdist import compat
from tfdist.step.per_sample_rows import SAME_VALUES
from tfdist.structures import Gradient


def are_unique(gradient: Gradient) -> bool:
    """Whether a gradient is sparse, and the numbers of its rows come straight from `tf.unique`.

    As with `may_be_fixed`, there is no telling outside of graphs.

    Args:
        gradient: a tensor or `tf.IndexedSlices`.
    """
    tensor = gradient.indices if isinstance(gradient, tf.IndexedSlices) else None
    while tensor is not None and tf.is_symbolic_tensor(tensor):
        operation = tensor.op
        if operation.type.startswith("Unique"):
            return tensor.value_index == 0
        if operation.type == "Placeholder":
            tensor = compat.captured_tensor(tensor)
        elif operation.type == "SelectV2":
            tensor = operation.inputs[2]  # Keras counts negative numbers from the end of the table
        elif operation.type == "Cast" or operation.type in SAME_VALUES:
            tensor = operation.inputs[0]
        else:
            return False
    return False


def added_up(rows: tf.IndexedSlices) -> tf.IndexedSlices:
    """One row for each number: the sum of its rows.

    Args:
        rows: those of all replicas.
    """
    numbers, places = tf.unique(rows.indices)
    sums = tf.math.unsorted_segment_sum(rows.values, places, tf.size(numbers))
    return tf.IndexedSlices(sums, numbers, rows.dense_shape)
