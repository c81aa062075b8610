"""Batches that the chief reads, for whichever worker is ready."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfdist.parameter_server.data.batch import Batch
from tfdist.parameter_server.data.source import SourceBase
from tfdist.parameter_server.devices import CHIEF
from tfdist.structures import Structure


class ChiefSource(SourceBase):
    """The chief reads the data. A worker gets the next batch when the worker is ready.

    Args:
        iterator: gives the batches.
    """

    def __init__(self, iterator: Iterator[Structure]):
        self._lock = threading.Lock()
        self._iterator = iterator
        self._position = 0
        self._returned: collections.deque[Batch] = collections.deque()

    def take(self, worker: int) -> Batch | None:
        """The first batch that was given back, or else the next batch of the data."""
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
