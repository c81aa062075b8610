"""Global batches that the chief reads and divides among the workers."""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfdist.data import batches
from tfdist.parameter_server.data.backups import Backups
from tfdist.parameter_server.data.batch import Batch, BatchPart
from tfdist.parameter_server.data.dropping import Dropping
from tfdist.parameter_server.data.durations import Durations
from tfdist.parameter_server.data.source import SourceBase
from tfdist.parameter_server.devices import CHIEF
from tfdist.step.weighting import batch_size, share_of
from tfdist.structures import Structure


class PartsSource(SourceBase):
    """The chief reads global batches and divides each into parts, one after the other.

    Parts of the next global batch are given only after `advance` was called.

    Args:
        iterator: gives the batches.
        parts: the number of parts.
        own: whether a worker gets the part with its own number. It then gets the part of another
            worker only if that worker has not asked for any part in this run, or is lost.
        backup: whether a worker also gets a part that another worker has begun, see `Backups`.
        drop: how many parts an update does not wait for, see `Dropping`. Not together with `own` or
            `backup`.
    """

    def __init__(
        self,
        iterator: Iterator[Structure],
        parts: int,
        own: bool = False,
        backup: bool = False,
        drop: int = 0,
    ):
        self._iterator = iterator
        self._parts = parts
        self._own = own
        self._backups = Backups() if backup else None
        self._dropping = Dropping(drop) if drop else None
        self._durations: Durations = self._backups or self._dropping or Durations()
        self._there: set[int] = set()
        self._changed = threading.Condition()
        self._position = self._begun = 0
        self._limit: int | None = None
        self._present: list[Batch] = []
        self._waiting: collections.deque[Batch] = collections.deque()
        self._used: set[int] = set()
        self._epoch = 0
        self._is_due = True
        self._ended = False
        self._closed = False

    def take(self, worker: int) -> Batch | None:
        """The next part of the present global batch; waits while there is none."""
        with self._changed:
            self._there.add(worker)
            self._durations.end(worker)
            while not self._closed:
                if self._waiting:
                    batch, seconds = self._next_for(worker)
                elif self._ended or (self._is_due and self._has_given_all()):
                    return None
                elif self._is_due:
                    self._divide()
                    continue
                else:
                    batch, seconds = self._backup_for(worker)
                if batch is not None:
                    self._durations.begin(worker, batch.index)
                    return batch
                self._changed.wait(seconds)
        return None

    def _next_for(self, worker: int) -> tuple[Batch | None, float | None]:
        """A part that nobody has begun; or the seconds until the worker should begin one."""
        if self._dropping is not None:
            left = {part.index for part in self._waiting}
            delay = self._dropping.delay(worker, self._missing, self._open_parts() - left)
            if delay > 0:
                return None, None if delay == math.inf else delay
        for place, batch in enumerate(self._waiting):
            if self._is_for(worker, batch):
                del self._waiting[place]
                return batch, None
        return None, None

    @property
    def _missing(self) -> int:
        """How many parts of the present global batch are missing for an update."""
        parts = len(self._present)
        wanted = parts if self._dropping is None else self._dropping.wanted(parts)
        return wanted - len(self._used)

    def _open_parts(self) -> set[int]:
        """The parts of the present global batch that are not used yet."""
        return {part.index for part in self._present} - self._used

    def _has_given_all(self) -> bool:
        return self._limit is not None and self._position - self._begun >= self._limit

    def _backup_for(self, worker: int) -> tuple[Batch | None, float | None]:
        """A part that another worker has begun, or the seconds until there may be one."""
        if self._backups is None:
            return None, None
        index, seconds = self._backups.choose(worker, self._open_parts())
        # The copy is not kept for others if this worker is lost.
        return (None if index is None else dataclasses.replace(self._present[index])), seconds

    def accept(self, batch: Batch, worker: int) -> bool:
        """Notes that a worker has computed a part.

        Returns:
            Whether the part may be used; not if another worker was earlier, or if the update was
            made without it.
        """
        with self._changed:
            self._durations.end(worker)
            is_present = bool(self._present) and batch.position == self._present[0].position
            if not is_present or batch.index in self._used:
                return False
            self._used.add(batch.index)
            return True

    def is_complete(self) -> bool:
        """Whether enough parts of the present global batch were accepted for an update."""
        with self._changed:
            return self._missing <= 0

    def _is_for(self, worker: int, batch: Batch) -> bool:
        return not self._own or batch.index == worker or batch.index not in self._there

    def leave(self, worker: int) -> None:
        """Lets other workers have the part of a lost worker."""
        with self._changed:
            self._there.discard(worker)
            self._durations.leave(worker)
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
                if self._dropping is not None:
                    self._leave_out_empty_parts()
                self._waiting.extend(self._present)
                self._position += 1
        self._changed.notify_all()

    def _leave_out_empty_parts(self) -> None:
        """Lets only parts with samples count for an update. One part is left in any case.

        The last parts are mostly those that are dropped. Which ones are the last differs from batch
        to batch and from epoch to epoch, so that not always the same samples are dropped.
        """
        parts = [one for one in self._present if one.part is not None and float(one.part.nonempty)]
        parts = parts or self._present[:1]
        first = (self._epoch + self._position - self._begun) % len(parts)
        self._present = [*parts[first:], *parts[:first]]

    def advance(self) -> int:
        """Called when the update with the present batch was made: the next batch may be read.

        Returns:
            How many parts were not used.
        """
        with self._changed:
            dropped = len(self._open_parts())
            self._present = []
            self._used.clear()
            self._waiting.clear()  # what nobody has begun, or what came back after a copy was used
            self._is_due = True
            self._durations.begin_batch()
            self._changed.notify_all()
            return dropped

    def give_back(self, batch: Batch) -> None:
        """Keeps the part for the next worker that asks.

        A part of an earlier run is ignored, because `open` has already offered that part again.
        """
        with self._changed:
            if any(batch is part for part in self._present) and batch.index not in self._used:
                self._waiting.appendleft(batch)
                self._changed.notify_all()

    def open(self, batches: int | None = None, epoch: int = 0) -> PartsSource:
        """Begins a run with a global batch that was used only partly, or else with the next one.

        Args:
            batches: how many global batches the run has; None for all that there are.
            epoch: the number of the epoch.
        """
        with self._changed:
            self._limit, self._epoch = batches, epoch
            self._used.clear()
            self._durations.begin_run()
            self._present = [dataclasses.replace(part, number=0) for part in self._present]
            self._waiting = collections.deque(self._present)
            self._there.clear()
            self._begun = self._position - bool(self._present)
            self._is_due, self._closed = not self._present, False
        return self

    def close(self) -> None:
        """Lets go the workers that wait for the next batch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _part(data: Structure, index: int, size: int | tf.Tensor) -> BatchPart:
    own = tf.cast(batch_size(data), tf.int64)
    share = share_of(own, tf.cast(size, tf.int64))
    return BatchPart(tf.constant(index), tf.convert_to_tensor(share.fraction), share.nonempty)
