"""Graphs of TensorFlow functions: what they capture, what they call, what they are traced in."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.registry import BOTH, READ, TENSORFLOW, touch
from tfdist.compat.sharded_weights import stored
from tfdist.structures import Variable

_FUNCTION = "tensorflow.python.framework.func_graph:FuncGraph"
_CAPTURES = touch(
    *(_FUNCTION, "captures", READ),
    why="the graph of a loss is followed, even through functions and their variables, to find "
    "what the loss is made of; and operations are placed on the devices of their variables",
    versions=TENSORFLOW,
    instead="a public link from a placeholder to what it captures",
)
_HANDLE = touch(
    *("tensorflow.python.ops.resource_variable_ops:BaseResourceVariable", "handle", READ),
    why="functions capture the handle of a variable. So handles in the graph of a loss tell which "
    "variables the loss depends on",
    versions=BOTH,
    instead="a public link from a captured tensor to its variable",
)
_GET_FUNCTION = touch(
    *("tensorflow.python.framework.ops:Graph", "_get_function", READ, "self", "name"),
    why="the graph of a loss is followed, even through functions, to find what the loss is made of",
    versions=TENSORFLOW,
    instead="a public look-up of functions by name",
)
_OUTER = touch(
    *(_FUNCTION, "outer_graph", READ),
    why="Horovod's operations are numbered separately in each outermost function that is traced",
    versions=TENSORFLOW,
    instead="a public attribute",
)
_IS_CONTROL_FLOW = touch(
    *(_FUNCTION, "is_control_flow_graph", READ),
    why="in a function that is called in a loop, TensorFlow cannot number the collective "
    "operations",
    versions=TENSORFLOW,
    instead="collective operations that can be called in a loop",
)
_ADD_INPUT = touch(
    *("tensorflow.python.framework.ops:Operation", "_add_control_input", READ),
    why="gradients are to be sent in the order of the backward pass. `tf.control_dependencies` "
    "works only for new operations, but when a strategy sees the gradients, their operations "
    "exist already",
    versions=TENSORFLOW,
    instead="a public method of `tf.Operation`",
)

_WRITES = touch(
    "tensorflow.python.framework.auto_control_deps_utils",
    *("get_read_write_resource_inputs", READ, "op"),
    why="what a step of a replica that trains apart sets, by whatever means, must become equal "
    "where the replicas meet; and a function that the step calls may set it",
    versions=TENSORFLOW,
    instead="a public list of the variables that a function may set",
)


def captured_tensor(placeholder: tf.Tensor) -> Any:
    """The outside tensor that a function's placeholder stands for; None for an argument."""
    for outside, inside in getattr(placeholder.graph, _CAPTURES.name, ()):
        if inside is placeholder:
            return outside
    return None


def captured_from(tensor: tf.Tensor) -> str:
    """The device of the outside tensor that a function captured as `tensor`; "" if unknown."""
    outside = captured_tensor(tensor)
    return "" if outside is None else outside.device


def resource_of(variable: Variable) -> Any:
    """What functions capture of a variable: its resource; in a replica, the copy's resource.

    Inside a `keras.StatelessScope` a variable's value is a tensor, and that tensor is returned.
    """
    value = stored(variable) if isinstance(variable, keras.Variable) else variable
    return getattr(value, _HANDLE.name, value)


def change_of(value: tf.Tensor, variable: tf.Variable) -> tuple[str, tf.Tensor] | None:
    """What `value`, in the graph of a function, adds to `variable` or subtracts from it.

    Returns:
        "+" or "-" and the change, of the dtype of the variable; None where `value` is no sum or
        difference of the variable and something else.
    """
    if not tf.is_symbolic_tensor(value):  # but another variable, such as an average of this one
        return None
    operation = _source(value).op
    if operation.type not in ("Add", "AddV2", "Sub") or value.dtype != variable.dtype:
        return None
    first, second = operation.inputs
    if _reads(first, variable):
        return "-" if operation.type == "Sub" else "+", second
    if operation.type != "Sub" and _reads(second, variable):
        return "+", first
    return None


def _reads(tensor: tf.Tensor, variable: tf.Variable) -> bool:
    operation = _source(tensor).op
    if operation.type != "ReadVariableOp":
        return False
    handle, own = operation.inputs[0], resource_of(variable)
    while handle is not own and tf.is_symbolic_tensor(handle):
        handle = captured_tensor(handle)
    return handle is own


def _source(tensor: tf.Tensor) -> tf.Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def operations_so_far() -> int:
    """The number of operations of the graph that is being traced; 0 outside of functions."""
    eagerly = tf.executing_eagerly()
    return 0 if eagerly else len(tf.compat.v1.get_default_graph().get_operations())


def written_since(start: int, end: int | None = None) -> list[tf.Tensor]:
    """The resources that new operations of the graph that is being traced may change.

    Args:
        start: a result of `operations_so_far`: operations from this one on are new.
        end: another one: operations from this one on do not count. None to count all.
    """
    found: dict[int, tf.Tensor] = {}
    for operation in tf.compat.v1.get_default_graph().get_operations()[start:end]:
        if any(tensor.dtype == tf.resource for tensor in operation.inputs):
            found.update({id(handle): handle for handle in _WRITES.get()(operation)[1]})
    return [_outermost(handle) for handle in found.values()]


def _outermost(handle: tf.Tensor) -> tf.Tensor:
    """What is captured as `handle`, from outside of all functions."""
    while tf.is_symbolic_tensor(handle):
        outside = captured_tensor(handle)
        if outside is None:
            break
        handle = outside
    return handle


def function_graph(graph: tf.Graph, name: str) -> Any:
    """The graph of the function called `name` in `graph`, None if there is no such function."""
    return getattr(_GET_FUNCTION.of(graph)(name), "graph", None)


def traced_function() -> tf.Graph | None:
    """The graph of the outermost function that is being traced, None outside of functions."""
    graph: tf.Graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while _outer(_outer(graph)) is not None:
        graph = _outer(graph)
    return graph


def _outer(graph: tf.Graph) -> Any:
    return getattr(graph, _OUTER.name, None)  # only graphs of functions have one


def innermost_function() -> tf.Graph:
    """The graph of the function that is being traced; its loops and conditions do not count."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, _IS_CONTROL_FLOW.name, False):
        graph = _outer(graph)
    return graph


def run_after(operation: tf.Operation, first: tf.Operation) -> None:
    """Makes `operation` wait for `first`, which may be newer, in a graph that is being traced."""
    _ADD_INPUT.of(operation)(first)


def is_in_function_of(outer: tf.Graph) -> bool:
    """Whether a function is being traced that another one, with the graph `outer`, calls.

    Loops and conditions of the other one do not count.
    """
    graph = tf.compat.v1.get_default_graph()
    while graph is not None and graph is not outer:
        if not getattr(graph, _IS_CONTROL_FLOW.name, False):
            return True
        graph = _outer(graph)
    return False


def in_function_in_loop() -> bool:
    """Whether the function that is being traced is called inside a loop or a condition."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, _IS_CONTROL_FLOW.name, False):
        graph = _outer(graph)
    while graph is not None:
        if getattr(graph, _IS_CONTROL_FLOW.name, False):
            return True
        graph = _outer(graph)
    return False
