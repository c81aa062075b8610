"""Data sets under a parameter server, and what Keras' loops iterate over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.parameter_server.data.pipelines import OwnPipelines, SerializedDataset
from tfdist.parameter_server.data.sharded_source import ShardedSource
from tfdist.parameter_server.data.sources import ChiefSource, PartsSource


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
