"""Sparse gradients whose rows do not depend on the samples, as those of a table of positions.

One device looks up a table of positions once for the whole batch, so each row occurs once in its
gradient. N replicas look it up once each. Their rows joined would hold each row N times, and Keras'
Adam squares each of them. So the values are summed place by place, as dense gradients are.

A table of words is another matter: one device has as many rows as all replicas together.
"""

from __future__ import annotations

import warnings

import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.step import replica
from tfdist.step.per_sample_rows import SAME_VALUES, are_per_sample
from tfdist.step.sizes import is_length
from tfdist.step.unique_rows import are_unique
from tfdist.structures import Gradient


def may_be_fixed(gradient: Gradient) -> bool:
    """Whether a gradient is sparse, with rows that seem to be the same whatever the samples.

    This is read from the graph in which the rows were looked up: do their numbers come from
    constants, variables and the length of texts only? Outside of graphs there is no telling. The
    graph does not tell everything: a constant may be the number of the replica. So the replicas
    compare their rows before they rely on it. Nor are rows fixed that are repeated for each sample,
    though they are the same for all.

    Args:
        gradient: a tensor or `tf.IndexedSlices`.
    """
    if not isinstance(gradient, tf.IndexedSlices) or not tf.is_symbolic_tensor(gradient.indices):
        return False
    left, seen = [gradient.indices], set()
    while left:
        tensor = left.pop()
        if not tf.is_symbolic_tensor(tensor) or tensor.ref() in seen or _is_fixed(tensor):
            continue
        seen.add(tensor.ref())
        if tensor.op.type == "Placeholder":
            outside = compat.captured_tensor(tensor)
            if outside is None:
                return False
            left.append(outside)
        elif not tensor.op.inputs or _depends(tensor.op):
            return False
        left += tensor.op.inputs
    step = replica.current()
    samples = None if step is None else step.samples
    return samples is None or not are_per_sample(gradient.indices, samples)


def _is_fixed(tensor: tf.Tensor) -> bool:
    """Whether a tensor is fixed, whatever the inputs of its operation are."""
    return tensor.op.type in ("Const", "ReadVariableOp") or is_length(tensor)


def _depends(operation: tf.Operation) -> bool:
    """Whether an operation may give other values on each replica, or with each batch."""
    return operation.type == "Shape" or "Random" in operation.type or _has_state(operation)


def _has_state(operation: tf.Operation) -> bool:
    return operation.op_def is None or operation.op_def.is_stateful


def summed_apart(gradient: Gradient) -> Gradient:
    """The gradient in a form that can be added to that of another part of the batch.

    Args:
        gradient: a tensor or `tf.IndexedSlices`, of a part of a global batch, for an optimizer
            to which it matters how often a row occurs.

    Raises:
        ValueError: for fixed rows of which one may occur twice. Added to another part's, there
            would be more of them than on one device.
    """
    if not may_be_fixed(gradient):
        if are_unique(gradient):
            warnings.warn(
                "The step looks up rows of a table by `tf.unique` numbers. `Synchronous` joins "
                "such rows of several parts of a batch, where one device has each of them once, "
                "so training may not equal that on one device. Look the rows up without "
                "`tf.unique`, or use another strategy. Received: indices from "
                f"{gradient.indices.op.name}",
                stacklevel=2,
            )
        return gradient
    if not _are_distinct(gradient.indices):
        raise ValueError(
            "The step looks up rows of a table by numbers that are the same for all samples, and "
            "may look up a row twice. `Synchronous` cannot add the gradients of several parts of "
            "a batch then: multiply the table by a one-hot matrix instead, or use another "
            f"strategy. Received: indices from {gradient.indices.op.name}"
        )
    return tf.convert_to_tensor(gradient)


def _are_distinct(indices: tf.Tensor) -> bool:
    """Whether no number occurs twice and none is negative, as far as the graph tells."""
    operation = indices.op
    if operation.type == "Range":
        start, _, delta = map(tf.get_static_value, operation.inputs)
        return start is not None and start >= 0 and delta is not None and delta > 0
    if operation.type in SAME_VALUES:
        return _are_distinct(operation.inputs[0])
    if operation.type == "Cast" and operation.inputs[0].dtype.is_integer:
        return _are_distinct(operation.inputs[0])
    if operation.type == "SelectV2" and operation.inputs[0].op.type == "Less":
        # Keras counts negative numbers from the end of the table; where none is, this is nothing.
        compared = operation.inputs[0].op.inputs
        is_own = compared[0] is operation.inputs[2] and tf.get_static_value(compared[1]) == 0
        return is_own and _are_distinct(operation.inputs[2])
    value = tf.get_static_value(indices)
    return value is not None and len(np.unique(value)) == np.size(value) and np.min(value) >= 0
