"""Where workers get their batches: here from the chief, who reads the data.

A batch is named by its shard and its position in it, and can be given back, when a worker is lost
before it has trained on it: another one takes it then.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from tfdist.data import batches
from tfdist.step.weighting import batch_size, share_of

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"


class Part(NamedTuple):
    """Which part of a global batch a step is given.

    Attributes:
        index: int32 scalar, which of the parts.
        fraction: float32 scalar, its share of the samples.
        nonempty: float32 scalar, 1.0 or 0.0 if it has none.
    """

    index: tf.Tensor
    fraction: tf.Tensor
    nonempty: tf.Tensor


@dataclasses.dataclass
class Batch:
    """A batch for a worker.

    Attributes:
        shard: which part of the data it is of; 0 where the chief reads all of them.
        position: its place in the part.
        data: the tensors, on the chief or on the worker that took it.
        part: which part of a global batch it is; None for a whole one.
        index: for a part, which one it is.
        number: for a part, the number of global batches before in this run.
        checksum: of the data, where a run is recorded; else None.
    """

    shard: int
    position: int
    data: Any
    part: Part | None = None
    index: int = 0
    number: int = 0
    checksum: str | None = None


class Source(Protocol):
    """Hands out batches; called by the threads of all workers.

    Attributes:
        on_workers: whether they read the data, so that an error in it is one of theirs.
    """

    on_workers: bool

    def take(self, worker: int) -> Batch | None:
        """The next batch for `worker`, under whose device it is called; None for none left."""

    def give_back(self, batch: Batch) -> None:
        """Takes a batch back that was not used."""

    def leave(self, worker: int) -> None:
        """Called when a worker is lost."""

    def close(self) -> None:
        """Called at the end of a run: nobody waits for batches any longer."""


class SourceBase:
    """What sources need not do."""

    on_workers = False

    def leave(self, worker: int) -> None:
        """Nothing is kept for a worker."""

    def close(self) -> None:
        """Nobody waits."""


class ChiefSource(SourceBase):
    """The chief reads the data; a worker gets the next batch when it is ready for one.

    Args:
        iterator: gives the batches.
    """

    def __init__(self, iterator: Iterator[Any]):
        self._lock = threading.Lock()
        self._iterator = iterator
        self._position = 0
        self._returned: collections.deque[Batch] = collections.deque()

    def take(self, worker: int) -> Batch | None:
        """The first of those that were given back, or the next one of the data."""
        del worker
        with self._lock:
            if self._returned:
                return self._returned.popleft()
            with tf.device(CHIEF):
                data = next(self._iterator, None)
            if data is None:
                return None
            self._position += 1
            return Batch(0, self._position - 1, data)

    def give_back(self, batch: Batch) -> None:
        """Keeps the batch for the next worker that asks."""
        with self._lock:
            self._returned.append(batch)


class PartsSource(SourceBase):
    """The chief reads global batches and divides each into parts, one after the other.

    No part of the next one is given before `advance` was called.

    Args:
        iterator: gives the batches.
        parts: the number of parts.
        own: whether a worker gets the part of its number, or another one only of a worker that has
            not asked for any in this run, or is lost.
    """

    def __init__(self, iterator: Iterator[Any], parts: int, own: bool = False):
        self._iterator = iterator
        self._parts = parts
        self._own = own
        self._there: set[int] = set()
        self._changed = threading.Condition()
        self._position = self._begun = 0
        self._present: list[Batch] = []
        self._waiting: collections.deque[Batch] = collections.deque()
        self._is_due = True
        self._ended = False
        self._closed = False

    def take(self, worker: int) -> Batch | None:
        """The next part of the present batch; waits while there is none."""
        with self._changed:
            self._there.add(worker)
            while not self._closed:
                for place, batch in enumerate(self._waiting):
                    if self._is_for(worker, batch):
                        del self._waiting[place]
                        return batch
                if self._waiting:
                    self._changed.wait()
                elif self._ended:
                    return None
                elif self._is_due:
                    self._divide()
                else:
                    self._changed.wait()
        return None

    def _is_for(self, worker: int, batch: Batch) -> bool:
        return not self._own or batch.index == worker or batch.index not in self._there

    def leave(self, worker: int) -> None:
        """Lets others have the part of a worker that is lost."""
        with self._changed:
            self._there.discard(worker)
            self._changed.notify_all()

    def _divide(self) -> None:
        with tf.device(CHIEF):
            data = next(self._iterator, None)
            self._is_due = False
            self._ended = data is None
            if data is not None:
                size = batch_size(data)
                for index in range(self._parts):
                    own = batches.part(data, size, index, self._parts)
                    part, number = _part(own, index, size), self._position - self._begun
                    self._present.append(Batch(0, self._position, own, part, index, number))
                self._waiting.extend(self._present)
                self._position += 1
        self._changed.notify_all()

    def advance(self) -> None:
        """Lets the next batch be read: all parts of the present one were used."""
        with self._changed:
            self._present = []
            self._is_due = True
            self._changed.notify_all()

    def give_back(self, batch: Batch) -> None:
        """Keeps the part for the next worker that asks; one of an earlier run is offered again."""
        with self._changed:
            if any(batch is part for part in self._present):
                self._waiting.appendleft(batch)
                self._changed.notify_all()

    def open(self) -> PartsSource:
        """Begins a run with the global batch that was not used whole, or else the next one."""
        with self._changed:
            self._present = [dataclasses.replace(part, number=0) for part in self._present]
            self._waiting = collections.deque(self._present)
            self._there.clear()
            self._begun = self._position - bool(self._present)
            self._is_due, self._closed = not self._present, False
        return self

    def close(self) -> None:
        """Lets those go who wait for the next batch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _part(data: Any, index: int, size: int | tf.Tensor) -> Part:
    own = tf.cast(batch_size(data), tf.int64)
    share = share_of(own, tf.cast(size, tf.int64))
    return Part(tf.constant(index), tf.convert_to_tensor(share.fraction), share.nonempty)
