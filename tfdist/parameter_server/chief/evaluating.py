"""Keras' test function under a parameter server."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import tensorflow as tf

from tfdist.parameter_server.chief.in_order import InOrderFunction
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.data.distributed_data import DataIterator
from tfdist.structures import Structure


class TestFunction(InOrderFunction):
    """Counts each batch once, whichever worker takes it."""

    def __init__(self, strategy: ChiefStrategy, model: keras.Model):
        super().__init__(strategy, model, "test")

    def __call__(self, iterator: Iterator[Structure]) -> dict[str, tf.Tensor]:
        """Counts the next batches in order, so that the sums equal those on one device."""
        if not isinstance(iterator, DataIterator):
            return self.call_keras(iterator)  # test_on_batch
        logs = None
        for _ in range(self.model.steps_per_execution):
            outcome = self.in_order(iterator)
            if outcome is None:
                break
            logs = self.completed(outcome.logs, self.updates.count(outcome.changes))
        if logs is None:
            raise StopIteration
        return logs
