"""Data sets under a parameter server, and what Keras' loops iterate over."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.strategies.parameter_server.data import ChiefSource, PartsSource
from tfdist.strategies.parameter_server.shards import ShardedSource

# Operations that only the process can run which made the data set.
_LOCAL_OPERATIONS = {"PyFunc", "EagerPyFunc", "PyFuncStateless", "GeneratorDataset"}


class DistributedData:
    """A data set of the strategy; each iterator over it is one pass.

    Args:
        dataset: the batches.
        own: the parts that the user made; None for none.
        strategy: the strategy.
    """

    def __init__(self, dataset: tf.data.Dataset, own: OwnPipelines | None, strategy: Any):
        self.dataset = dataset
        self.strategy = strategy
        self.passes = 0
        self._shards: Any = own

    def __iter__(self) -> Iterator[Any]:
        return DataIterator(self)

    def shards(self) -> SerializedDataset | OwnPipelines | None:
        """The parts that workers read; None where the chief reads all."""
        if self._shards is None:
            self._shards = self.strategy.shards_of(self.dataset)
        return self._shards


class DataIterator:
    """One pass over the data.

    Args:
        data: the data.
    """

    def __init__(self, data: DistributedData):
        self._data = data
        self._chief = _opened(data.dataset)
        self._sharded: ShardedSource | None = None
        self._source: ChiefSource | None = None
        self._divided: PartsSource | None = None
        self.element_spec = data.dataset.element_spec

    def __iter__(self) -> DataIterator:
        return self

    def __next__(self) -> Any:
        """Predictions for the next batch, for Keras' `predict`; else the batch itself."""
        predicting = self._data.strategy.prediction
        return next(self._chief) if predicting is None else predicting.predictions_of(self)

    def source(self) -> ChiefSource:
        """Gives the rest of the batches, which the chief reads."""
        if self._source is None:
            self._source = ChiefSource(self._chief)
        return self._source

    def training_source(
        self, epoch: int, batches: int | None
    ) -> ChiefSource | PartsSource | ShardedSource:
        """Gives the rest of the batches to workers that train.

        Args:
            epoch: the number of the epoch.
            batches: how many batches are left of it; None for as many as there are.
        """
        strategy = self._data.strategy
        if strategy.policies.synchronous:
            # What compression leaves of a part follows it, which is to be seldom to another worker.
            own = (
                strategy.options.compression is not None
                and strategy.max_pending >= strategy.num_workers
            )
            self._divided = self._divided or PartsSource(self._chief, strategy.num_workers, own)
            return self._divided.open()
        shards = self._data.shards()
        if shards is None:
            return self.source()
        if self._sharded is None:
            self._data.passes += 1
            self._sharded = ShardedSource(shards, self._data.passes)
        return self._sharded.begin(epoch, batches)


def _opened(dataset: tf.data.Dataset) -> Iterator[Any]:
    """An iterator over the batches, in the chief."""
    try:
        return iter(dataset)
    except tf.errors.InvalidArgumentError as error:
        if "unknown device" not in str(error):
            raise
        raise ValueError(
            "The data set was made before the strategy connected to its cluster, when devices had "
            f"other names. Make the strategy first. Received: {dataset}"
        ) from error


class SerializedDataset:
    """A data set that workers make from its graph, each its own copy.

    Batches go to the parts in turn, so all copies must have the same order. A copy is kept as long
    as its worker lives, and gives another order in each pass as far as the original does.

    Args:
        dataset: the batches.
        shards: the number of parts.

    Raises:
        ValueError: for data that only the process can read which made the data set.
    """

    in_turn = True

    def __init__(self, dataset: tf.data.Dataset, shards: int):
        self.count = shards
        self.following = tf.function(_following, reduce_retracing=True, autograph=False)
        self._spec = dataset.element_spec
        self._graph = _graph(dataset)
        self._copies: dict[tuple[int, int], _Copy] = {}

    def open(self, worker: int, shard: int, skip: int, number: int) -> Iterator[Any]:
        """An iterator over a part, on the worker whose device is the present one."""
        if (worker, shard) not in self._copies:
            variant = tf.raw_ops.DatasetFromGraph(graph_def=self._graph)
            copy = tf.data.experimental.from_variant(variant, self._spec)
            self._copies[worker, shard] = _Copy(copy.shard(self.count, shard))
        copy = self._copies[worker, shard]
        while copy.passes < number - 1:  # each pass moves the order on
            iter(copy.dataset)
            copy.passes += 1
        copy.passes = number
        return iter(copy.dataset.skip(skip))

    def leave(self, worker: int) -> None:
        """Forgets the copies of a worker that is lost."""
        for key in [key for key in tuple(self._copies) if key[0] == worker]:
            del self._copies[key]


class OwnPipelines:
    """Each worker's part as the user makes it.

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
        self._functions = [
            tf.function(functools.partial(dataset_fn, tf.distribute.InputContext(shards, shard, 1)))
            for shard in range(shards)
        ]
        self._made: dict[int, tf.types.experimental.ConcreteFunction] = {}

    def open(self, worker: int, shard: int, skip: int, number: int) -> Iterator[Any]:
        """An iterator over a part, on the worker whose device is the present one."""
        del worker, number
        if shard not in self._made:
            with tf.device(None):
                self._made[shard] = self._functions[shard].get_concrete_function()
        return iter(self._made[shard]().skip(skip))

    def leave(self, worker: int) -> None:
        """Nothing is kept for a worker."""

    def joined(self) -> tf.data.Dataset:
        """All parts one after the other, of unknown length, as the chief reads them."""
        first, *others = [function.python_function() for function in self._functions]
        for dataset in others:
            first = first.concatenate(dataset)
        return first.apply(tf.data.experimental.assert_cardinality(tf.data.UNKNOWN_CARDINALITY))


@dataclasses.dataclass
class _Copy:
    """A worker's own copy of a part, and how often it was passed through."""

    dataset: tf.data.Dataset
    passes: int = 0


def _graph(dataset: tf.data.Dataset) -> tf.Tensor:
    problem = None
    try:
        graph = tf.raw_ops.DatasetToGraphV2(
            input_dataset=tf.data.experimental.to_variant(dataset),
            external_state_policy=1,
            strip_device_assignment=True,
        )
        definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
        nodes = [*definition.node]
        for function in definition.library.function:
            nodes += function.node_def
        found = sorted({node.op for node in nodes} & _LOCAL_OPERATIONS)
        if found:
            problem = f"it calls Python ({', '.join(found)})"
    except tf.errors.OpError as error:
        problem = str(error.message).splitlines()[0]
    if problem is None:
        return graph
    raise ValueError(
        "Workers cannot make this data set themselves: " + problem + ". Let the chief read it, "
        'with `tfdist.ParameterServerStrategy(..., input="dynamic")`, or hand in a function that '
        "makes each worker's part with `strategy.distribute_datasets_from_function`. "
        f"Received: {dataset}"
    )


def _following(iterator: Any) -> tuple[tf.Tensor, tf.experimental.Optional]:
    following = iterator.get_next_as_optional()
    return following.has_value(), following
