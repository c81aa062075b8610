"""Before stage 1: large gradients of variables come early in the backward pass.

A layer's backward pass gives the gradient of its variables, and that of its input, for the layer
before it. TensorFlow computes both at the same time where it can. The exchange of the first can
begin sooner if it does not share the processor with the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.structures import Gradient

# What may come between the operation that computes a gradient and the gradient.
_OTHER_FORMS = {"Cast", "Identity", "Mul", "Reshape", "Transpose"}


def compute_first(gradients: Sequence[Any], at_least: int) -> None:
    """Makes what needs the same inputs as a large gradient, and is not needed for it, wait for it.

    Called while a step is traced. Gradients that are not computed in the function that is being
    traced are left alone, so it does nothing outside of a `tf.function`.

    Args:
        gradients: tensors, `tf.IndexedSlices`, or None.
        at_least: bytes of a gradient that is large. What computes so much uses all cores of a
            device alone; smaller ones gain from running beside each other.
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
    """The operation, and all that it depends on."""
    found: set[tf.Operation] = set()
    left = [operation]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left.extend([*(tensor.op for tensor in one.inputs), *one.control_inputs])
    return found


class _Order:
    """What comes before what in a graph that is being traced.

    When TensorFlow has traced a function, it makes its stateful operations wait for each other in
    the order in which they were made. What is put first must not come after one that it was made
    before: operations could then wait for each other in a circle.
    """

    def __init__(self, graph: tf.Graph):
        self._operations = graph.get_operations()
        self._places = {operation: place for place, operation in enumerate(self._operations)}

    def put_first(self, operation: tf.Operation) -> None:
        """Makes the others that take one of the operation's inputs wait for it where they can."""
        needed = _needed(operation)
        for other in {other for tensor in operation.inputs for other in tensor.consumers()}:
            if other not in needed and not self._stateful_between(other, operation):
                compat.run_after(other, operation)

    def _stateful_between(self, first: tf.Operation, last: tf.Operation) -> bool:
        between = self._operations[self._places[first] : self._places[last] + 1]
        return any(operation.op_def.is_stateful for operation in between)
