"""The shards of a data set: what each worker reads itself."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable

import tensorflow as tf

from tfdist import compat
from tfdist.data import seeds
from tfdist.parameter_server.data.pipeline_graph import PipelineGraph
from tfdist.structures import Structure


class SerializedDataset:
    """A data set as a graph, from which each worker makes its own copy.

    The batches go to the shards in turn. So all copies must have the same order; see
    `PipelineGraph`.

    Args:
        dataset: the batches.
        shards: the number of shards.

    Raises:
        ValueError: for data that workers cannot read, or cannot read in one order.
    """

    in_turn = True

    def __init__(self, dataset: tf.data.Dataset, shards: int):
        self.count = shards
        self.following = tf.function(_following, reduce_retracing=True, autograph=False)
        self.next = tf.function(_next, reduce_retracing=True, autograph=False)
        self._spec = dataset.element_spec
        self._graph = PipelineGraph(dataset)
        exactly = self._graph.is_counted_exactly
        self._batches = int(dataset.cardinality() if exactly else compat.counted_by_keras(dataset))
        self._sent: dict[int, tf.Tensor] = {}
        self._copies = Copies()

    def has(self, shard: int, position: int) -> bool | None:
        """Whether a shard has a batch at this position; None where the length is not known."""
        if self._batches == tf.data.UNKNOWN_CARDINALITY:
            return None
        endless = self._batches == tf.data.INFINITE_CARDINALITY
        return endless or position * self.count + shard < self._batches

    def open(self, worker: int, shard: int, skip: int, number: int) -> tf.data.Iterator:
        """An iterator over a shard, on the worker whose device is the present one."""
        if self._graph.is_renewed:
            return iter(self._copy(worker, shard, number).skip(skip))
        copy = self._copies.in_pass(worker, shard, number, lambda: self._copy(worker, shard, 1))
        return iter(copy.skip(skip))

    def _copy(self, worker: int, shard: int, number: int) -> tf.data.Dataset:
        if worker not in self._sent:  # it may contain arrays, so it is sent only once
            self._sent[worker] = tf.identity(tf.constant(self._graph.whole))
        graph = tf.strings.join([self._sent[worker], self._graph.of_pass(number)])
        variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
        return tf.data.experimental.from_variant(variant, self._spec).shard(self.count, shard)

    def leave(self, worker: int) -> None:
        """Forgets what a worker had that is lost."""
        self._sent.pop(worker, None)
        self._copies.leave(worker)


class OwnPipelines:
    """Each worker's shard, made by a function of the user.

    Args:
        dataset_fn: called with a `tf.distribute.InputContext`; returns the worker's data set.
        shards: the number of workers.
    """

    in_turn = False

    def __init__(
        self, dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset], shards: int
    ):
        self.count = shards
        self.following = tf.function(_following, reduce_retracing=True, autograph=False)
        self.next = tf.function(_next, reduce_retracing=True, autograph=False)
        self._dataset_fn = dataset_fn
        self._seed = secrets.randbits(30)
        self._made: dict[int, tf.types.experimental.ConcreteFunction] = {}
        self._copies = Copies()

    def has(self, shard: int, position: int) -> bool | None:
        """None: what a function of the user makes may differ from shard to shard."""
        del shard, position
        return None

    def open(self, worker: int, shard: int, skip: int, number: int) -> tf.data.Iterator:
        """An iterator over a shard, on the worker whose device is the present one."""
        if shard not in self._made:
            with tf.device(None):
                function = tf.function(lambda: self._seeded(shard))
                self._made[shard] = function.get_concrete_function()
        return iter(self._copies.in_pass(worker, shard, number, self._made[shard]).skip(skip))

    def _seeded(self, shard: int) -> tf.data.Dataset:
        """A shard, in the same order on any worker. Called while a function is traced."""
        if seeds.global_seed() is None:
            tf.random.set_seed(self._seed)  # only inside the function
        return self._shard(shard)

    def _shard(self, shard: int) -> tf.data.Dataset:
        return self._dataset_fn(tf.distribute.InputContext(self.count, shard, 1))

    def leave(self, worker: int) -> None:
        """Forgets what a worker had that is lost."""
        self._copies.leave(worker)

    def joined(self) -> tf.data.Dataset:
        """All shards one after the other, of unknown length, as the chief reads them."""
        first, *others = [self._shard(shard) for shard in range(self.count)]
        for dataset in others:
            first = first.concatenate(dataset)
        return first.apply(tf.data.experimental.assert_cardinality(tf.data.UNKNOWN_CARDINALITY))


class Copies:
    """Data sets on workers that are kept, and have another order in each pass."""

    def __init__(self) -> None:
        self._copies: dict[tuple[int, int], _Copy] = {}

    def in_pass(
        self, worker: int, shard: int, number: int, make: Callable[[], tf.data.Dataset]
    ) -> tf.data.Dataset:
        """A worker's copy of a shard, ready for an iterator over pass `number`.

        Args:
            worker: the index of the worker.
            shard: the index of the shard.
            number: the number of the pass over the data, from 1.
            make: gives a new copy.
        """
        copy = self._copies.get((worker, shard))
        if copy is None or copy.passes >= number:  # a copy cannot go back to an earlier order
            copy = self._copies[worker, shard] = _Copy(make())
        while copy.passes < number - 1:
            iter(copy.dataset)
            copy.passes += 1
        copy.passes = number
        return copy.dataset

    def leave(self, worker: int) -> None:
        """Forgets the copies of a worker that is lost."""
        for key in [key for key in tuple(self._copies) if key[0] == worker]:
            del self._copies[key]


@dataclasses.dataclass
class _Copy:
    """A worker's copy of a shard, and the number of passes over it so far."""

    dataset: tf.data.Dataset
    passes: int = 0


def _next(iterator: tf.data.Iterator) -> Structure:
    return next(iterator)


def _following(iterator: tf.data.Iterator) -> tuple[tf.Tensor, tf.experimental.Optional]:
    following = iterator.get_next_as_optional()
    return following.has_value(), following
