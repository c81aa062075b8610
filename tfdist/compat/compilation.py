"""XLA: what is compiled of a step that replicas run together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, REPLACED, TENSORFLOW, touch

_TRAINER = "keras.src.backend.tensorflow.trainer:TensorFlowTrainer"
_MAKERS = [
    touch(
        *(_TRAINER, f"make_{kind}_function", REPLACED, "self", "force"),
        why="Keras compiles the function around all replicas, with the exchange of gradients in "
        "it, which XLA cannot compile",
        versions=KERAS,
        instead="a strategy that Keras asks what is to be compiled",
    )
    for kind in ("train", "test", "predict")
]
_SET_ATTRIBUTE = touch(
    *("tensorflow.python.framework.ops:Operation", "_set_attr", READ, "self", "attr_name"),
    why="`tf.xla.experimental.jit_scope` belongs to a whole graph, but the replicas of a strategy "
    "take turns in tracing one graph",
    versions=TENSORFLOW,
    instead="a `jit_scope` of one thread",
)
_IN_XLA = touch(
    *("tensorflow.python.ops.control_flow_util", "GraphOrParentsInXlaContext", READ, "graph"),
    why="XLA cannot compile an exchange between replicas; replicas of one process would wait for "
    "each other forever",
    versions=TENSORFLOW,
    instead="an error of TensorFlow's own",
)
_COMPILE = "_XlaCompile"  # what `jit_scope` writes
_MEETS = "called while defining a new graph"
_EXCHANGES = ("Collective", "Horovod", "Nccl")


def hook_functions(hook: Callable[[keras.Model, Callable[[], object]], object]) -> None:
    """Makes Keras make its functions of a model with `hook(model, make)`.

    `make()` is Keras' own method with its arguments filled in.
    """

    def make_method(original: Callable) -> Callable:
        @functools.wraps(original)
        def make_function(self: keras.Model, force: bool = False) -> object:
            return hook(self, functools.partial(original, self, force))

        return make_function

    for found in _MAKERS:
        found.replace(make_method)


def compile_where_possible(operations: Iterable[tf.Operation]) -> None:
    """Lets XLA compile what it can of `operations`, in a graph that is being traced."""
    value = tf.compat.v1.AttrValue(b=True)
    for operation in operations:
        _SET_ATTRIBUTE.of(operation)(_COMPILE, value)


@tf.autograph.experimental.do_not_convert
def is_in_xla() -> bool:
    """Whether a function is being traced that XLA must compile, or a function inside of it."""
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and bool(_IN_XLA.get()(graph))


def is_refused_meeting(error: RuntimeError) -> bool:
    """Whether TensorFlow raised `error` because replicas were to meet inside of a function."""
    return _MEETS in str(error)


def exchanges(graph: tf.Graph) -> bool:
    """Whether operations of `graph`, or of functions in it, send something to other replicas."""
    definition = graph.as_graph_def()
    functions = (node for function in definition.library.function for node in function.node_def)
    return any(node.op.startswith(_EXCHANGES) for node in (*definition.node, *functions))


def are_captured_by(
    operations: Iterable[tf.Operation], graph: tf.Graph, tensors: Iterable[tf.Tensor]
) -> bool:
    """Whether any of `operations`, of a function's graph, uses one of `tensors` from outside."""
    wanted = {id(tensor) for tensor in tensors}
    inner = {id(inside) for outside, inside in graph.captures if id(outside) in wanted}
    return any(id(tensor) in inner for operation in operations for tensor in operation.inputs)
