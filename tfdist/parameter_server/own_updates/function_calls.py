"""Calls of functions within the graph of a worker."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator

import tensorflow as tf

from tfdist.structures import Structure

_EXECUTOR = "SINGLE_THREADED_EXECUTOR"
_BRANCHES = {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile"}


class FunctionCalls:
    """Makes functions to operations of the graph around them.

    Their own operations are many and small, and to hand each to another thread would take longer
    than it does. So they run one by one. TensorFlow's executor that does so waits for ever for a
    function that branches: where there is one, no function runs so.
    """

    def __init__(self) -> None:
        self._one_by_one = True
        # To look through a large graph takes longer than an update, and each epoch would do so.
        self._fitting: weakref.WeakSet[tf.types.experimental.ConcreteFunction] = weakref.WeakSet()

    def one_by_one(self) -> contextlib.AbstractContextManager[None]:
        """The context in which functions are called whose operations run one by one.

        `tf.distribute.Strategy.run` has a thread of its own, which must enter it too.
        """
        if not self._one_by_one:
            return contextlib.nullcontext()
        return tf.experimental.function_executor_type(_EXECUTOR)

    def apart(self, function: Callable) -> Callable:
        """The function as an operation, which no operation of the graph around it can mix with."""
        traced = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})

        def call(*arguments: Structure) -> Structure:
            with self.one_by_one():
                return traced(*arguments)

        return call

    def fit(self, traced: tf.types.experimental.ConcreteFunction) -> bool:
        """Whether what was traced can run. If not, it must be traced anew, and can run then."""
        if not self._one_by_one or traced in self._fitting:
            return True
        if _branches(traced.graph.as_graph_def()):
            self._one_by_one = False
            return False
        self._fitting.add(traced)
        return True


def _branches(graph: tf.compat.v1.GraphDef) -> bool:
    """Whether a function that runs one by one branches, or calls a function that does."""
    functions = {function.signature.name: function for function in graph.library.function}
    nodes = [*graph.node, *(node for f in functions.values() for node in f.node_def)]
    wanted = [n for n in nodes if n.attr["executor_type"].s.decode() == _EXECUTOR]
    names = {name for node in wanted for name in _called(node)}
    seen: set[str] = set()
    while names:
        name = names.pop()
        seen.add(name)
        for node in functions[name].node_def:
            if node.op in _BRANCHES:
                return True
            names |= set(_called(node)) - seen
    return False


def _called(node: tf.compat.v1.NodeDef) -> Iterator[str]:
    for attribute in node.attr.values():
        if attribute.func.name:
            yield attribute.func.name
        yield from (function.name for function in attribute.list.func)
