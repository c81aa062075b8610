"""Batches that the workers read themselves: each worker reads its own shard."""

from __future__ import annotations

import threading
from typing import Protocol

import tensorflow as tf

from tfdist.parameter_server.data.batch import Batch
from tfdist.parameter_server.data.source import SourceBase
from tfdist.structures import Structure


class Shards(Protocol):
    """The shards of a data set, which workers read themselves.

    Attributes:
        count: the number of shards.
        in_turn: whether the batches of one data set go to the shards in turn.
    """

    count: int
    in_turn: bool

    def has(self, shard: int, position: int) -> bool | None:
        """Whether a shard has a batch at this position; None if only the worker can find out."""

    def next(self, iterator: tf.data.Iterator) -> Structure:
        """The next batch of an iterator that has one."""

    def following(self, iterator: tf.data.Iterator) -> tuple[tf.Tensor, tf.experimental.Optional]:
        """Whether an iterator has one more batch, and that batch."""

    def open(self, worker: int, shard: int, skip: int, number: int) -> tf.data.Iterator:
        """An iterator over a shard, on the worker whose device is the present one.

        Args:
            worker: the index of that worker.
            shard: the index of the shard.
            skip: how many batches of the shard to leave out.
            number: the number of the pass over the data, from 1.
        """

    def leave(self, worker: int) -> None:
        """Called when a worker is lost."""


class ShardedSource(SourceBase):
    """Each worker reads its own shard of the data.

    When a worker is lost, other workers may read the rest of its shard.

    Args:
        shards: the shards.
        number: the number of the pass over the data, from 1.
    """

    on_workers = True

    def __init__(self, shards: Shards, number: int):
        self._lock = threading.Lock()
        self._shards = shards
        self._number = number
        self._owners: dict[int, int | None] = {shard: shard for shard in range(shards.count)}
        self._positions = dict.fromkeys(range(shards.count), 0)
        self._iterators: dict[int, tuple[int, tf.data.Iterator]] = {}
        self._epoch: int | None = None
        self._end: int | None = None

    def begin(
        self, epoch: int, batches: int | None, gives_iterators: bool = False
    ) -> ShardedSource:
        """Called before each run.

        Where the shards are of one data set, all of them give equally many batches to an epoch.
        Otherwise, with an endless data set, a fast worker would go through its shard more often
        than others.

        Args:
            epoch: the number of the epoch, which may have several runs.
            batches: the number of batches in its first run; None for all that there are.
            gives_iterators: whether to hand out iterators where it is known how many batches there
                are.
        """
        self.gives_iterators = gives_iterators and self._shards.has(0, 0) is not None
        with self._lock:
            if epoch != self._epoch:
                self._epoch = epoch
                if batches is not None and self._shards.in_turn:
                    self._end = (self._end or 0) + batches
                for shard in self._owners:  # the shard's own worker may be back
                    self._owners[shard] = shard
        return self

    @property
    def is_shared(self) -> bool:
        """Whether shards give as many batches to an epoch as their workers have time for."""
        return not self._shards.in_turn

    def take(self, worker: int) -> Batch | None:
        """The next batch of the worker's shard; after its end, of a shard that nobody reads."""
        while (shard := self._shard_of(worker)) is not None:
            reader, iterator = self._iterators.get(shard, (None, None))
            if reader != worker:
                position = self._positions[shard]
                iterator = self._shards.open(worker, shard, position, self._number)
                self._iterators[shard] = worker, iterator
            data = self._next(shard, iterator)
            if data is not None:
                self._positions[shard] += 1
                return Batch(shard, self._positions[shard] - 1, data)
            with self._lock:
                del self._owners[shard]
        return None

    def _next(self, shard: int, iterator: tf.data.Iterator) -> Structure | None:
        """The next batch of a shard; None at its end. Raises an error when the worker is lost."""
        known = self._shards.has(shard, self._positions[shard])
        if known is False:
            return None
        if known:  # else the worker is asked, which takes one more message each way
            return iterator if self.gives_iterators else self._shards.next(iterator)
        there_is_one, following = self._shards.following(iterator)
        return following.get_value() if there_is_one else None

    def _shard_of(self, worker: int) -> int | None:
        with self._lock:
            for wanted in (worker, None):
                for shard, owner in self._owners.items():
                    if owner == wanted and not self._is_done(shard):
                        self._owners[shard] = worker
                        return shard
        return None

    def _is_done(self, shard: int) -> bool:
        """Whether the epoch has no more batches of a shard."""
        if self._end is None:
            return False
        return self._positions[shard] * self._shards.count + shard >= self._end

    def give_back(self, batch: Batch) -> None:
        """Leaves the shard to others, who begin with this batch."""
        with self._lock:
            self._positions[batch.shard] = min(self._positions[batch.shard], batch.position)
            self._iterators.pop(batch.shard, None)
            self._owners.setdefault(batch.shard, None)  # the shard's end had been found

    def leave(self, worker: int) -> None:
        """Frees the shards of a worker that is lost."""
        self._shards.leave(worker)
        with self._lock:
            for shard, owner in self._owners.items():
                if owner == worker:
                    self._owners[shard] = None
            for shard, (reader, _) in tuple(self._iterators.items()):
                if reader == worker:
                    del self._iterators[shard]
