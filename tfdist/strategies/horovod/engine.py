"""The engine for processes that Horovod connects: Horovod's operations, safe inside TensorFlow."""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tfdist import compat
from tfdist.engines.contract import Engine, Value
from tfdist.engines.halves import sum_of_rows, sums_of_halves
from tfdist.engines.processes import Processes
from tfdist.engines.replica_context import check_unconditional
from tfdist.engines.words import from_words, to_words
from tfdist.strategies.horovod import under_way


class HorovodEngine(Engine):
    """Horovod's operations between ranks of one replica each.

    Args:
        hvd: the module `horovod.tensorflow`, initialized.
        processes: the ranks.
    """

    largest_message = None
    runs_beside_steps = True  # ranks match operations by name, and agree which is next

    def __init__(self, hvd: ModuleType, processes: Processes):
        self.processes = processes
        self._hvd = hvd
        self._operations: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self._under_way = under_way.of_graphs()
        with tf.device("CPU:0"):  # keeps Horovod's operations in the graph
            self._zero = tf.Variable(0, trainable=False, name="zero")
            self._sink = tf.Variable(0.0, trainable=False, name="sink")

    @property
    def replicas(self) -> int:
        """The number of ranks."""
        return self.processes.size

    def _identity(self) -> dict[str, Any]:
        """The name by which ranks match the next operation of the function being traced.

        Horovod matches operations by name. Its default is the tensor's name, which depends on what
        is known of the tensor's shape. That can differ if ranks trace at different times.
        """
        graph = compat.traced_function()
        if graph is None:
            return {}
        self._operations[graph] = number = self._operations.get(graph, 0) + 1
        function = re.sub(r"\W", "_", getattr(graph, "name", "graph"))
        return {"name": f"tfdist.{function}.{number}", "ignore_name_scope": True}

    def _entered(self, tensor: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
        """`tensor` in `shape`, a vector, made so that TensorFlow cannot see a constant.

        Horovod's operations are not marked as stateful. If the input is a constant (the static size
        of a batch, the gradient of no samples, the zeros of a rank that has nothing to give),
        TensorFlow runs the operation while it optimizes the graph. A rank that traces alone would
        then wait for the others. A slice that begins where a variable says has values that nobody
        knows, also of zeros. Only a reshape to such a shape is not enough: TensorFlow knows what a
        reshape of a vector to a vector gives. Neither copies anything.
        """
        flat = tf.reshape(tensor, [-1])
        return tf.reshape(tf.slice(flat, self._zero.read_value()[None], [-1]), shape)

    def _left(self, result: tf.Tensor) -> None:
        """Keeps an operation in the graph: TensorFlow drops results that are multiplied by zero.

        A control dependency would not keep the operation. Writing a value to a variable does.
        """
        first = tf.reshape(result, [-1])[:1]
        self._sink.assign(tf.reduce_sum(tf.cast(first, tf.float32)))

    def _run(self, operation: Callable[..., tf.Tensor], tensor: tf.Tensor) -> tf.Tensor:
        """The result of one of Horovod's operations; all ranks run it, even if it is not needed."""
        check_unconditional()
        result = operation(self._entered(tensor, tf.shape(tensor)), **self._identity())
        self._left(result)
        return result

    def all_reduce(self, values: Sequence[Value]) -> list[Value]:
        """The sums over the ranks, in one negotiation; half precision takes two more.

        Horovod's own sum of half precision is scalar code, and rounds at each rank of the ring.
        """
        if self.replicas == 1:
            return list(values)
        check_unconditional()
        sums: dict[int, Value] = {}
        sparse = [i for i, value in enumerate(values) if isinstance(value, tf.IndexedSlices)]
        halves = [i for i, value in enumerate(values) if value.dtype == tf.float16]
        for places, reduce in (
            ([i for i in halves if i not in sparse], functools.partial(sums_of_halves, self)),
            ([i for i in range(len(values)) if i not in (*halves, *sparse)], self._sum_of_others),
        ):
            if places:
                sums.update(zip(places, reduce([tf.convert_to_tensor(values[i]) for i in places])))
        for place in sparse:
            sums[place] = self._joined(values[place])
        return [sums[place] for place in range(len(values))]

    def _joined(self, rows: tf.IndexedSlices) -> tf.IndexedSlices:
        """The rows of all ranks."""
        indices = self.all_gather(rows.indices)
        if self.replicas != 2:
            return tf.IndexedSlices(self.all_gather(rows.values), indices, rows.dense_shape)
        own = tf.shape(rows.values)[0]
        count = tf.shape(indices)[0] - own  # of the other rank
        most = tf.reduce_max([own, count, 1])
        others = self._swapped(_filled_up(rows.values, most))[:count]
        return tf.IndexedSlices(self._in_order(rows.values, others), indices, rows.dense_shape)

    def _swapped(self, tensor: tf.Tensor) -> tf.Tensor:
        """What the other one of two ranks has for `tensor`: the sum of both without the own one.

        In Gloo's gather and all-to-all one of two ranks sends after the other, unless they begin at
        the same time. In its sum both send at once, and as many bytes. Integers lose nothing.
        """
        check_unconditional()
        words = to_words(tensor)
        if tf.executing_eagerly():
            given = self._sum_of_words(words) - words
        else:
            swaps = under_way.of(self._under_way)
            with tf.control_dependencies(swaps.before(words)):
                total = self._sum_of_words(words)
            given = total - words  # in the memory of the sum, as nothing else uses it
            swaps.add(given)
        self._left(given)
        return from_words(tf.reshape(given, tf.shape(words)), tensor)

    def _sum_of_words(self, words: tf.Tensor) -> tf.Tensor:
        entered = self._entered(words, tf.size(words)[None])
        return self._hvd.allreduce(entered, op=self._hvd.Sum, **self._identity())

    def _in_order(self, own: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
        """What two ranks have, one after the other."""
        return tf.concat([own, others] if self.processes.rank == 0 else [others, own], axis=0)

    def _sum_of_others(self, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        first, *others = tensors
        entered = [self._entered(first, tf.size(first)[None]), *others]
        if others:
            sums = self._hvd.grouped_allreduce(entered, op=self._hvd.Sum, **self._identity())
        else:
            sums = [self._hvd.allreduce(entered[0], op=self._hvd.Sum, **self._identity())]
        self._left(sums[0])
        return [tf.reshape(sums[0], tf.shape(first)), *sums[1:]]

    def all_gather(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensors of all ranks, one after the other."""
        if self.replicas == 1:
            return tensor
        gathered = self._run(self._hvd.allgather, tensor)
        return tf.ensure_shape(gathered, [None, *tensor.shape[1:]])

    def broadcast(self, tensor: tf.Tensor, root: int = 0) -> tf.Tensor:
        """The tensor of rank `root`."""
        if self.replicas == 1:
            return tensor
        if tf.executing_eagerly():
            return self._hvd.broadcast(tensor, root_rank=root)

        def sent(entered: tf.Tensor, **identity: Any) -> tf.Tensor:
            return self._hvd.broadcast(entered, root_rank=root, **identity)

        return tf.ensure_shape(self._run(sent, tensor), tensor.shape)

    def all_to_all(self, rows: tf.Tensor) -> tf.Tensor:
        """The rows for this rank."""
        if self.replicas == 1:
            return rows
        if self.replicas == 2:
            rank = self.processes.rank
            others = self._swapped(rows[1 - rank])
            return self._in_order(rows[rank][tf.newaxis], others[tf.newaxis])
        return tf.ensure_shape(self._run(self._hvd.alltoall, rows), rows.shape)

    def all_to_some(self, vector: tf.Tensor, counts: tf.Tensor) -> tf.Tensor:
        """Gives the next `counts[j]` elements of `vector` to each rank j.

        Args:
            vector: the elements for rank 0, then those for rank 1, and so on.
            counts: int32, of `[replicas]`.

        Returns:
            What the ranks have given to this one, one after the other.
        """

        def sent(entered: tf.Tensor, **identity: object) -> tf.Tensor:
            return self._hvd.alltoall(entered, splits=counts, **identity)[0]

        return self._run(sent, vector)

    def reduce_scatter(self, vector: tf.Tensor) -> tf.Tensor:
        """This rank's part of the sum, added up from the parts that all ranks send to this one.

        Half precision is summed in float32.
        """
        if self.replicas == 1:
            return vector
        rows = tf.reshape(vector, [self.replicas, -1])
        if self.replicas == 2:
            rank = self.processes.rank
            # In this order: the sum of a slice would be written into the whole vector, and keep it.
            return self._swapped(rows[1 - rank]) + rows[rank]
        return sum_of_rows(self.all_to_all(rows))

    def all_gather_parts(self, part: tf.Tensor, in_turn: bool = False) -> tf.Tensor:
        """The parts of all ranks, one after the other."""
        if self.replicas == 2:
            return self._in_order(part, self._swapped(part))
        return super().all_gather_parts(part, in_turn)


def _filled_up(rows: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """`rows`, and rows of zeros up to so many."""
    missing = tf.stack([count - tf.shape(rows)[0], *tf.unstack(tf.shape(rows)[1:])])
    return tf.concat([rows, tf.zeros(missing, rows.dtype)], axis=0)
