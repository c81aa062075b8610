"""Other inputs for operations of a graph that is being traced."""

from __future__ import annotations

import tensorflow as tf

from tfdist.compat.registry import READ, TENSORFLOW, touch

_UPDATE_INPUT = touch(
    *("tensorflow.python.framework.ops:Operation", "_update_input", READ),
    *("self", "index", "tensor"),
    why="a backward pass uses the weights that the forward pass has used, which would keep them in "
    "memory. It is given the same weights, gathered again",
    versions=TENSORFLOW,
    instead="a gradient that is told which tensors to use",
)


def replace_input(operation: tf.Operation, index: int, tensor: tf.Tensor) -> None:
    """Makes `tensor` the input `index` of an operation in place of another one of its kind."""
    _UPDATE_INPUT.of(operation)(index, tensor)


def repeated(operation: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
    """The outputs of another operation of the same kind, with other inputs of the same kinds."""
    with tf.device(operation.device):
        again = operation.graph.create_op(
            operation.type,
            inputs,
            [output.dtype for output in operation.outputs],
            attrs=dict(operation.node_def.attr),
        )
    for output, like in zip(again.outputs, operation.outputs):
        output.set_shape(like.shape)
    return list(again.outputs)
