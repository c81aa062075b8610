"""On which parameter server the operations of an update run."""

from __future__ import annotations

import tensorflow as tf

from tfdist import compat


def where_the_largest_input_is(operation: tf.Operation) -> str:
    """The parameter server on which an operation of an update runs; "" for the chief.

    What is computed from a variable or its gradient stays on the server of that variable. An
    operation with inputs of equal size from several servers runs in the chief.
    """
    if operation.device:
        return operation.device
    largest = 0.0
    tasks: set[int] = set()
    for tensor in operation.inputs:
        size = float(tensor.shape.num_elements() or 0)
        place = tf.DeviceSpec.from_string(_device_of(tensor))
        if place.job == "ps" and size >= largest:
            tasks = {place.task} if size > largest else tasks | {place.task}
            largest = size
    return f"/job:ps/replica:0/task:{tasks.pop()}" if len(tasks) == 1 else ""


def _device_of(tensor: tf.Tensor) -> str:
    """Where a tensor is computed; "" where that is not known."""
    if tensor.op.type == "ReadVariableOp":
        return compat.captured_from(tensor.op.inputs[0])
    return tensor.op.device
