"""How many bytes of operations wait for Horovod at a time."""

from __future__ import annotations

import collections

import tensorflow as tf

# As one operation travels, the next ones wait. More of them would only take memory: Horovod makes
# the result of a sum when it is handed in.
_MOST_BYTES = 4 * 2**20
_LEAST = 1


class UnderWay:
    """The operations of a function, in the order in which they are traced."""

    def __init__(self) -> None:
        self._sizes: collections.deque[int] = collections.deque()
        self._results: collections.deque[tf.Tensor] = collections.deque()
        self._ended: list[tf.Tensor] = []

    def before(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        """The results that must be there before `tensor` is handed in."""
        size = (tensor.shape.num_elements() or 0) * tensor.dtype.size
        while len(self._results) >= _LEAST and sum(self._sizes) + size > _MOST_BYTES:
            self._sizes.popleft()
            self._ended = [self._results.popleft()]
        self._sizes.append(size)
        return self._ended

    def add(self, result: tf.Tensor) -> None:
        """Adds the result for the tensor that was handed in last."""
        self._results.append(result)
