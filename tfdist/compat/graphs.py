"""TensorFlow's graphs of functions: what they capture, call, and are traced inside of."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.registry import BOTH, READ, TENSORFLOW, touch

_FUNCTION = "tensorflow.python.framework.func_graph:FuncGraph"
_CAPTURES = touch(
    *(_FUNCTION, "captures", READ),
    why="the graph of a loss tells what it is made of, also through functions and their variables; "
    "operations are put where their variables are",
    versions=TENSORFLOW,
    instead="a public link from a placeholder to what it captures",
)
_HANDLE = touch(
    *("tensorflow.python.ops.resource_variable_ops:BaseResourceVariable", "handle", READ),
    why="functions capture it; the graph of a loss tells by it which variables it depends on",
    versions=BOTH,
    instead="a public link from a captured tensor to its variable",
)
_GET_FUNCTION = touch(
    *("tensorflow.python.framework.ops:Graph", "_get_function", READ, "self", "name"),
    why="the graph of a loss tells what it is made of, also through functions",
    versions=TENSORFLOW,
    instead="a public look-up of functions by name",
)
_OUTER = touch(
    *(_FUNCTION, "outer_graph", READ),
    why="Horovod's operations are numbered by the outermost function that is being traced",
    versions=TENSORFLOW,
    instead="a public attribute",
)
_IS_CONTROL_FLOW = touch(
    *(_FUNCTION, "is_control_flow_graph", READ),
    why="TensorFlow cannot number the collective operations of a function that is called in a loop",
    versions=TENSORFLOW,
    instead="collective operations that can be called in a loop",
)
_ADD_INPUT = touch(
    *("tensorflow.python.framework.ops:Operation", "_add_control_input", READ),
    why="gradients leave in the order of the backward pass; `tf.control_dependencies` is only for "
    "operations that do not exist yet, and those do when a strategy sees the gradients",
    versions=TENSORFLOW,
    instead="a public method of `tf.Operation`",
)


def captured_tensor(placeholder: tf.Tensor) -> Any:
    """What a function's placeholder stands for outside of the function, None for an argument."""
    for outside, inside in getattr(placeholder.graph, _CAPTURES.name, ()):
        if inside is placeholder:
            return outside
    return None


def captured_from(tensor: tf.Tensor) -> str:
    """The device of what a function takes `tensor` from; "" where that is not known."""
    outside = captured_tensor(tensor)
    return "" if outside is None else outside.device


def resource_of(variable: Any) -> Any:
    """What functions capture of a variable; in a replica that of its own copy.

    Inside a `keras.StatelessScope`, where the variable's value is a tensor, it is this tensor.
    """
    value = variable.value if isinstance(variable, keras.Variable) else variable
    return getattr(value, _HANDLE.name, value)


def function_graph(graph: tf.Graph, name: str) -> Any:
    """The graph of a function that is called in `graph`, None where there is none."""
    return getattr(_GET_FUNCTION.of(graph)(name), "graph", None)


def traced_function() -> tf.Graph | None:
    """The graph of the outermost function that is being traced, None outside of any."""
    graph: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while _outer(_outer(graph)) is not None:
        graph = _outer(graph)
    return graph


def _outer(graph: Any) -> Any:
    return getattr(graph, _OUTER.name, None)  # a graph that is no function's has none


def run_after(operation: tf.Operation, first: tf.Operation) -> None:
    """Makes an operation of a graph that is being traced wait for another one, maybe a newer."""
    _ADD_INPUT.of(operation)(first)


def in_function_in_loop() -> bool:
    """Whether a function is being traced that is called inside a loop or a condition."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, _IS_CONTROL_FLOW.name, False):
        graph = _outer(graph)
    while graph is not None:
        if getattr(graph, _IS_CONTROL_FLOW.name, False):
            return True
        graph = _outer(graph)
    return False
