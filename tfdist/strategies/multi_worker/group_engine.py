"""TensorFlow's collective operations in groups that change."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.cluster.addresses import without_proxy
from tfdist.elastic.formation import Formation
from tfdist.elastic.group import Group
from tfdist.elastic.processes import GroupProcesses
from tfdist.engines.contract import Engine, Value
from tfdist.engines.halves import sum_of_rows, with_sums_of_halves
from tfdist.engines.words import from_words, to_words

# A group has a number for each of its uses, so that operations of different uses never meet.
_USES = 1024
_uses = itertools.count(1)  # 0 is for what the ranks tell each other

# What the errors of operations contain when a process is gone.
_ABORTED = "tfdist: the group is no more"
_SIGNS_OF_LOSS = (
    _ABORTED,
    "Collective ops is aborted",
    "Collective has timed out",
    "GRPC error",
    "Socket closed",
    "failed to connect",
    "Connection reset",
    "Connection refused",
)


class Numbers:
    """The numbers of collective operations, by which the ranks match them.

    Operations are numbered in the order in which they are traced, or run eagerly. In each group
    the numbers begin anew, so whatever was traced before must be traced again.

    Args:
        use: what the operations are for; below 1024, and the same in all ranks.
    """

    def __init__(self, use: int):
        self._use = use
        self._group_key, self._size = 0, 1
        self._numbers: Iterator[int] = itertools.count()
        self._token: tf.Variable | None = None

    def begin(self, generation: int, size: int) -> None:
        """Begins to number the operations of a group."""
        self._group_key, self._size = generation * _USES + self._use, size
        self._numbers = itertools.count()

    def next(self) -> dict[str, Any]:
        """The arguments that identify the next operation."""
        return {
            "group_size": self._size,
            "group_key": self._group_key,
            "instance_key": next(self._numbers),
            "ordering_token": [self._ordering_token()],
        }

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
        with tf.device("CPU:0"):
            total = tf.raw_ops.CollectiveReduceV2(
                input=tf.reshape(value, [-1]), merge_op="Add", final_op="Id", **self.next()
            )
            return tf.reshape(total, tf.shape(value))


class CollectivesConnection:
    """Connects the ranks of an elastic job over gRPC.

    Args:
        address: where this process listens.
    """

    def __init__(self, address: str):
        self.address = address
        self._numbers = Numbers(0)

    def form(self, formation: Formation, own: int) -> None:
        """Connects this process to the members of a group."""
        os.environ.update(without_proxy(os.environ, formation.addresses))
        compat.form_group(dict(zip(formation.members, formation.addresses)), own)
        self._numbers.begin(formation.generation, len(formation.members))

    def leave(self) -> None:
        """Aborts what may still run."""
        self.interrupt()

    def interrupt(self) -> None:
        """Aborts operations that wait for other ranks."""
        compat.abort_group(_ABORTED)

    def is_loss(self, error: Exception) -> bool:
        """Whether an operation was aborted, or a connection broke."""
        return isinstance(error, tf.errors.OpError) and any(
            sign in error.message for sign in _SIGNS_OF_LOSS
        )

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum over the ranks."""
        return self._numbers.sum(value)


class GroupEngine(Engine):
    """The engine of one strategy, whose ranks are a group that changes.

    Args:
        group: the group.
        connection: connects the processes.
        largest_message: as in `Engine`.
    """

    def __init__(self, group: Group, connection: CollectivesConnection, largest_message: int):
        self.processes = GroupProcesses(group, connection.sum)
        self.largest_message = largest_message
        self._group = group
        self._numbers = Numbers(next(_uses))
        self._begin()
        group.on_change(self._begin)

    def _begin(self) -> None:
        self._numbers.begin(self._group.generation, self._group.size)

    @property
    def replicas(self) -> int:
        """The number of ranks."""
        return self._group.size

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums, with one operation per value; the rows of sparse values are joined.

        Half precision is summed in float32, if there are more than two ranks.
        """
        return with_sums_of_halves(self, values, self._sums)

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
        """The tensors of all ranks, one after the other: filled up to the length of the longest."""
        if self.replicas == 1:
            return tensor
        own = tf.shape(tensor)[0]
        place = tf.one_hot(self._group.rank, self.replicas, dtype=tf.int32)
        counts = self._numbers.sum(place * own)
        longest = tf.reduce_max(counts)
        rest = [[0, longest - own], *[[0, 0]] * (tensor.shape.rank - 1)]
        with tf.device("CPU:0"):
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=tf.pad(tensor, rest), **self._numbers.next()
            )
        kept = tf.reshape(tf.sequence_mask(counts, longest), [-1])
        return tf.ensure_shape(tf.boolean_mask(gathered, kept), [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor of `root`: its bits as integers, summed with zeros, which is exact."""
        if self.replicas == 1:
            return tensor
        words = to_words(tensor)
        own = words if self._group.rank == root else tf.zeros_like(words)
        return from_words(self._numbers.sum(own), tensor)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this rank."""
        if self.replicas == 1:
            return rows
        with tf.device("CPU:0"):
            received = tf.raw_ops.CollectiveAllToAllV2(input=rows, **self._numbers.next())
        return tf.ensure_shape(received, rows.shape)

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This rank's part of the sum, added up from the parts that all ranks send to this one.

        Half precision is summed in float32.
        """
        if self.replicas == 1:
            return vector
        return sum_of_rows(self.all_to_all(tf.reshape(vector, [self.replicas, -1])))
