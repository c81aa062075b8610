"""How many bytes of operations wait for Horovod at a time."""

from __future__ import annotations

import collections
import weakref

import tensorflow as tf

# As one operation travels, the next ones wait. More of them would only take memory: Horovod makes
# the result of a sum when it is handed in.
_MOST_BYTES = 16 * 2**20
_LEAST = 2


class UnderWay:
    """The operations of a graph, by name and in the order in which they are traced.

    By name, as tensors would keep their graph in memory. What has an unknown size, as the rows of
    sparse gradients, counts nothing.
    """

    def __init__(self) -> None:
        self._sizes: collections.deque[int] = collections.deque()
        self._results: collections.deque[str] = collections.deque()
        self._ended = ""

    def before(self, tensor: tf.Tensor) -> list[tf.Operation]:
        """What must have run before `tensor` is handed in."""
        size = (tensor.shape.num_elements() or 0) * tensor.dtype.size
        while len(self._results) >= _LEAST and sum(self._sizes) + size > _MOST_BYTES:
            self._sizes.popleft()
            self._ended = self._results.popleft()
        self._sizes.append(size)
        return [tensor.graph.get_operation_by_name(self._ended)] if self._ended else []

    def add(self, result: tf.Tensor) -> None:
        """Adds the result for the tensor that was handed in last."""
        self._results.append(result.op.name)


def of_graphs() -> weakref.WeakKeyDictionary[tf.Graph, UnderWay]:
    """What is under way, by graph; for `of`."""
    return weakref.WeakKeyDictionary()


def of(graphs: weakref.WeakKeyDictionary[tf.Graph, UnderWay]) -> UnderWay:
    """What is under way in the graph that is being traced."""
    return graphs.setdefault(tf.compat.v1.get_default_graph(), UnderWay())
