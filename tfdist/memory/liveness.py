"""The most bytes that the tensors of a traced function take at a time, without running it."""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.memory.lists import LOOPS, bytes_of_lists
from tfdist.memory.sizes import Moments

# Their results are their inputs in another shape, or under another name.
_SAME_BYTES = {
    *("Identity", "IdentityN", "Reshape", "ExpandDims", "Squeeze", "StopGradient"),
    *("PreventGradient", "ReadVariableOp", *LOOPS),
}
_NO_BYTES = {"Const", "Placeholder"}


class Walk:
    """Runs a graph in thought: an operation runs when all its inputs are there, first come first.

    A tensor exists until the last operation that needs it has run. An operation's result is never
    written over its input. TensorFlow does that here and there, but it also keeps some tensors for
    longer: the tests say how far the two are apart.

    Args:
        graph: of a traced function. What it is called with counts nothing.
        wanted: the operations that it is run for.
        weights: the shapes of variables.
    """

    def __init__(
        self,
        graph: tf.Graph,
        wanted: Sequence[tf.Operation],
        weights: Collection[tuple[int, ...]] = (),
    ):
        self._bytes_of_lists = bytes_of_lists(graph, weights)
        needed = _needed(set(wanted))
        self._operations = [o for o in graph.get_operations() if o in needed]

    def _bytes(self, tensor: tf.Tensor) -> int:
        if tensor.op.type in _NO_BYTES:
            return 0
        if tensor.op in self._bytes_of_lists:
            return self._bytes_of_lists[tensor.op]
        return (tensor.shape.num_elements() or 0) * (tensor.dtype.size or 0)

    def moments(self, apart: Collection[tf.Operation] = ()) -> Moments:
        """The moments at which most bytes exist.

        Args:
            apart: operations whose results are counted apart. How often their bytes count decides
                which of the moments has most.

        Returns:
            For each moment the bytes of all other tensors, and of those apart. No moment is left
            out at which more of both exist.
        """
        users: collections.Counter = collections.Counter()
        for operation in self._operations:
            users.update({_place(tensor) for tensor in operation.inputs})
        chosen = set(apart)
        exist: dict[Any, tuple[bool, int]] = {}
        now = [0, 0]
        seen: set[tuple[int, int]] = set()
        for operation in _in_order(self._operations):
            is_apart = operation in chosen
            made = {t.ref(): self._bytes(t) for t in operation.outputs if _place(t) == t.ref()}
            for place, size in made.items():
                exist[place] = is_apart, size
                now[is_apart] += size
            seen.add((now[0], now[1]))
            for place in {_place(tensor) for tensor in operation.inputs}:
                users[place] -= 1
            for place in (*made, *map(_place, operation.inputs)):
                if users[place] <= 0:
                    was_apart, size = exist.pop(place, (False, 0))
                    now[was_apart] -= size
        return _highest(seen)

    @property
    def unknown(self) -> int:
        """How many tensors of numbers have sizes that depend on the data. They count nothing."""
        return sum(
            tensor.shape.num_elements() is None
            for operation in self._operations
            if operation.type not in _SAME_BYTES
            for tensor in operation.outputs
            if tensor.dtype.is_floating
        )


def _highest(seen: Iterable[tuple[int, int]]) -> Moments:
    """Those pairs of which no other one has more of both numbers."""
    found: list[tuple[int, int]] = []
    for pair in sorted(seen, reverse=True):
        if not found or pair[1] > found[-1][1]:
            found.append(pair)
    return tuple(found)


def origin(tensor: tf.Tensor) -> tf.Tensor:
    """The tensor whose bytes these are: this one, or one that it shows in another shape."""
    while tensor.op.type in _SAME_BYTES and tensor.op.inputs:
        inputs = tensor.op.inputs
        tensor = inputs[min(tensor.value_index, len(inputs) - 1)]
    return tensor


def _place(tensor: tf.Tensor) -> Any:
    return origin(tensor).ref()


def _before(operation: tf.Operation) -> set[tf.Operation]:
    """The operations that must have run before this one."""
    return {tensor.op for tensor in operation.inputs} | set(operation.control_inputs)


def _needed(wanted: set[tf.Operation]) -> set[tf.Operation]:
    """These operations, and all that they need."""
    found, ahead = set(wanted), list(wanted)
    while ahead:
        new = _before(ahead.pop()) - found
        found |= new
        ahead += new
    return found


def _in_order(operations: Sequence[tf.Operation]) -> Iterator[tf.Operation]:
    """The operations as their inputs come to be there."""
    waits_for, then = {}, collections.defaultdict(list)
    for operation in operations:
        before = _before(operation)
        waits_for[operation] = len(before)
        for other in before:
            then[other].append(operation)
    ready = collections.deque(o for o in operations if not waits_for[o])
    while ready:
        operation = ready.popleft()
        yield operation
        for later in then[operation]:
            waits_for[later] -= 1
            if not waits_for[later]:
                ready.append(later)
