"""TensorFlow's collective operations in any group of processes, by numbers of our own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.engines.contract import Engine, Value
from tfdist.engines.halves import sum_of_rows, with_sums_of_halves
from tfdist.engines.processes import Processes
from tfdist.engines.words import from_words, to_words

# A group has a number for each of its uses, so that operations of different uses never meet.
_USES = 1024
# The number of an operation in a function takes the upper half of 31 bits, its size the lower. Of
# sizes that differ by a multiple of the prime, TensorFlow would say that they differ.
_TRACED, _SIZES, _PRIME = 2**16, 2**15, 32749
_uses = itertools.count(1)  # 0 is for what the ranks of elastic groups tell each other


class Numbers:
    """The numbers of collective operations, by which the ranks match them.

    Operations are numbered in the order in which they are traced, or run eagerly. In each group
    the numbers begin anew, so whatever was traced before must be traced again.

    Args:
        use: what the operations are for; below 1024, and the same in all ranks. None for a new
            one: all ranks make the same in the same order.
    """

    def __init__(self, use: int | None = None):
        self._use = next(_uses) if use is None else use
        self._group_key, self._size = 0, 1
        self._numbers: Iterator[int] = itertools.count()
        self._token: tf.Variable | None = None

    def begin(self, generation: int, size: int) -> None:
        """Begins to number the operations of a group."""
        self._group_key, self._size = generation * _USES + self._use, size
        self._numbers = itertools.count()

    def next(self, tensor: tf.Tensor) -> dict[str, Any]:
        """The arguments that identify the next operation.

        Args:
            tensor: what the operation takes, of the same size in all ranks.
        """
        return {
            "group_size": self._size,
            "group_key": self._group_key,
            "instance_key": self._key(tensor),
            "ordering_token": [self._ordering_token()],
        }

    def _key(self, tensor: tf.Tensor) -> tf.Tensor:
        """A number for an operation and a size: TensorFlow wants one size for each number.

        Operations that run eagerly have numbers below zero, each its own.
        """
        number = next(self._numbers)
        if tf.executing_eagerly():
            return tf.constant(-1 - number)
        if number >= _TRACED:
            raise RuntimeError(
                "Too many operations between ranks were traced in this process: look for functions "
                f"that are traced again and again. Received: operation {number}"
            )
        return number * _SIZES + tf.size(tensor) % _PRIME

    def _ordering_token(self) -> tf.Tensor:
        """What operations of this use have in common, so that they run in their order.

        Without it they would be in one order with all operations that have a state, such as clocks
        and Python functions, which would wait for other ranks then.
        """
        if self._token is None:
            with tf.init_scope(), tf.device("CPU:0"):
                self._token = compat.plain_variable(tf.zeros([]))
        return self._token.handle

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks."""
        if self._size == 1:
            return value
        flat = tf.reshape(value, [-1])
        with tf.device("CPU:0"):
            total = tf.raw_ops.CollectiveReduceV2(
                input=flat, merge_op="Add", final_op="Id", **self.next(flat)
            )
            return tf.reshape(total, tf.shape(value))


class NumberedEngine(Engine):
    """TensorFlow's collective operations between processes of one replica each.

    Args:
        processes: the processes.
        numbers: of the operations, for these processes.
        largest_message: as in `Engine`.
    """

    def __init__(self, processes: Processes, numbers: Numbers, largest_message: int):
        self.processes = processes
        self.largest_message = largest_message
        self._numbers = numbers

    @property
    def replicas(self) -> int:
        """The number of ranks."""
        return self.processes.size

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums, with one operation per value; the rows of sparse values are joined.

        Half precision is summed in float32, if there are more than two ranks.
        """
        others = [value for value in values if not _is_empty(value)]
        sums = iter(with_sums_of_halves(self, others, self._sums))
        return [tf.identity(value) if _is_empty(value) else next(sums) for value in values]

    def _sums(self, values: Sequence[Value]) -> list[Value]:
        return [
            tf.IndexedSlices(
                self.all_gather(value.values), self.all_gather(value.indices), value.dense_shape
            )
            if isinstance(value, tf.IndexedSlices)
            else tf.ensure_shape(self._sum(value), value.shape)
            for value in values
        ]

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks. The gradient of a sum is the sum of the ranks' gradients."""

        @tf.custom_gradient
        def summed(value: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return self._numbers.sum(value), self._sum

        return summed(value)

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all ranks, one after the other: filled up to the length of the longest.

        TensorFlow's gather crashes if there is nothing to gather, so at least one element travels.
        """
        if self.replicas == 1:
            return tensor
        shape = tf.shape(tensor)
        place = tf.one_hot(self.processes.rank, self.replicas, dtype=tf.int32)
        rows = self._numbers.sum(place * shape[0])
        counts = rows * tf.reduce_prod(shape[1:])
        longest = tf.maximum(tf.reduce_max(counts), 1)
        flat = tf.reshape(tensor, [-1])
        with tf.device("CPU:0"):
            padded = tf.pad(flat, [[0, longest - tf.size(flat)]])
            gathered = tf.raw_ops.CollectiveGatherV2(input=padded, **self._numbers.next(padded))
        kept = tf.boolean_mask(gathered, tf.reshape(tf.sequence_mask(counts, longest), [-1]))
        joined = tf.reshape(kept, tf.concat([[tf.reduce_sum(rows)], shape[1:]], 0))
        return tf.ensure_shape(joined, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor of `root`: its bits as integers, summed with zeros, which is exact."""
        if self.replicas == 1:
            return tensor
        words = to_words(tensor)
        own = words if self.processes.rank == root else tf.zeros_like(words)
        return from_words(self._numbers.sum(own), tensor)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this rank."""
        if self.replicas == 1 or _is_empty(rows):
            return rows
        with tf.device("CPU:0"):
            received = tf.raw_ops.CollectiveAllToAllV2(input=rows, **self._numbers.next(rows))
        return tf.ensure_shape(received, rows.shape)

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This rank's part of the sum, added up from the parts that all ranks send to this one.

        Half precision is summed in float32.
        """
        if self.replicas == 1:
            return vector
        return sum_of_rows(self.all_to_all(tf.reshape(vector, [self.replicas, -1])))


def _is_empty(value: Value) -> bool:
    """Whether a dense tensor has no elements: TensorFlow's all-to-all would crash the process."""
    return not isinstance(value, tf.IndexedSlices) and value.shape.num_elements() == 0
