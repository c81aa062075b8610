"""Before stage 1: large gradients of variables are computed early in the backward pass.

A layer's backward pass computes two things: the gradient of its variables, and the gradient of its
input, for the layer before. TensorFlow computes both at the same time where it can. If the
variables' gradient comes first and has the processor to itself, its exchange can begin sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.structures import Gradient

# Operations that may stand between the one that computes a gradient and the gradient itself.
_OTHER_FORMS = {"Cast", "Identity", "Mul", "Reshape", "Transpose"}


def compute_first(gradients: Sequence[Any], at_least: int) -> None:
    """Computes large gradients before other operations that use the same inputs.

    The other operations wait, unless the gradient needs them itself. Called while a step is traced.
    Only gradients that are computed in the function being traced are ordered, so nothing happens
    outside of a `tf.function`.

    Args:
        gradients: tensors, `tf.IndexedSlices`, or None.
        at_least: a gradient of this many bytes is large. Computing a large gradient uses all cores
            of a device. Smaller gradients gain from being computed side by side.
    """
    graph = tf.compat.v1.get_default_graph()
    large = [g for g in gradients if _is_of(graph, g) and _bytes(g) >= at_least]
    if large:
        order = _Order(graph)
        for gradient in large:
            order.put_first(_computing(gradient.op))


def _is_of(graph: tf.Graph, gradient: Gradient) -> bool:
    is_tensor = isinstance(gradient, tf.Tensor) and tf.is_symbolic_tensor(gradient)
    return is_tensor and gradient.graph is graph


def _bytes(tensor: tf.Tensor) -> int:
    return (tensor.shape.num_elements() or 0) * tensor.dtype.size


def _computing(operation: tf.Operation) -> tf.Operation:
    while operation.type in _OTHER_FORMS:
        operation = operation.inputs[0].op
    return operation


def _needed(operation: tf.Operation) -> set[tf.Operation]:
    """The operation, and all operations that it depends on."""
    found: set[tf.Operation] = set()
    left = [operation]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left.extend([*(tensor.op for tensor in one.inputs), *one.control_inputs])
    return found


class _Order:
    """The order of operations in a graph that is being traced.

    After tracing a function, TensorFlow makes its stateful operations wait for each other in the
    order in which they were created. So an operation must not be put before another one if a
    stateful operation was created between the two: they could then wait for each other in a circle.
    """

    def __init__(self, graph: tf.Graph):
        self._operations = graph.get_operations()
        self._places = {operation: place for place, operation in enumerate(self._operations)}

    def put_first(self, operation: tf.Operation) -> None:
        """Makes the other users of the operation's inputs wait for it, where that is safe."""
        needed = _needed(operation)
        for other in {other for tensor in operation.inputs for other in tensor.consumers()}:
            if other not in needed and not self._stateful_between(other, operation):
                compat.run_after(other, operation)

    def _stateful_between(self, first: tf.Operation, last: tf.Operation) -> bool:
        between = self._operations[self._places[first] : self._places[last] + 1]
        return any(operation.op_def.is_stateful for operation in between)
