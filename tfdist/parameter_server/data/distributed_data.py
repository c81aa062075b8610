"""Data sets under a parameter server, and what Keras' loops iterate over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import tensorflow as tf

from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.data.chief_source import ChiefSource
from tfdist.parameter_server.data.parts_source import PartsSource
from tfdist.parameter_server.data.sharded_source import ShardedSource, Shards
from tfdist.structures import Structure


class Division(NamedTuple):
    """How global batches are divided among the workers; see `PartsSource`.

    Attributes:
        parts: the number of parts.
        own: whether a worker gets the part with the worker's own number.
        backup: whether an idle worker computes a part that another one has not finished.
        drop: how many parts an update does not wait for.
    """

    parts: int
    own: bool
    backup: bool
    drop: int

    @classmethod
    def of(cls, strategy: ChiefStrategy) -> Division:
        """How the workers of `strategy` divide a batch."""
        # The residual of a part moves with the part, so a part should seldom change its worker.
        compresses = strategy.options.compression is not None
        own = compresses and strategy.max_pending >= strategy.num_workers
        policies = strategy.policies
        # A record says which parts were used, so all of them must be there.
        drop = 0 if strategy.journal.follows_record else policies.drop
        return cls(policies.parts(strategy.num_workers), own, policies.backup, drop)


class DistributedData:
    """A data set of the strategy; each iterator over it is one pass.

    Args:
        dataset: the batches.
        make_shards: makes the shards that workers read when they train; returns None where the
            chief reads all data.
        division: how the chief divides batches for training; None where workers get whole batches.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        make_shards: Callable[[], Shards | None],
        division: Division | None,
    ):
        self.dataset = dataset
        self.division = division
        self.passes = 0
        self._make_shards = make_shards
        self._shards: Shards | None = None

    def __iter__(self) -> DataIterator:
        return DataIterator(self)

    def shards(self) -> Shards | None:
        """The shards that workers read; None where the chief reads all data."""
        if self._shards is None:
            self._shards = self._make_shards()
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

    def __next__(self) -> Structure:
        return next(self._chief)

    def source(self) -> ChiefSource:
        """The source of the remaining batches, which the chief reads."""
        if self._source is None:
            self._source = ChiefSource(self._chief)
        return self._source

    def training_source(
        self, epoch: int, batches: int | None, gives_iterators: bool = False
    ) -> ChiefSource | PartsSource | ShardedSource:
        """The source of the remaining batches, for workers that train.

        Args:
            epoch: the number of the epoch.
            batches: how many batches are left of the epoch; None for all that there are.
            gives_iterators: whether workers may be given iterators in place of batches.
        """
        division = self._data.division
        if division is not None:
            self._divided = self._divided or PartsSource(self._chief, *division)
            return self._divided.open(batches, epoch)
        shards = self._data.shards()
        if shards is None:
            return self.source()
        if self._sharded is None:
            self._data.passes += 1
            self._sharded = ShardedSource(shards, self._data.passes)
        return self._sharded.begin(epoch, batches, gives_iterators)


def _opened(dataset: tf.data.Dataset) -> Iterator[Structure]:
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
