"""Keras' predict function under a parameter server.

Keras' `predict` asks an iterator for batches, and hands each batch to its predict function. By then
the workers should already have predicted for this batch and for the next ones. So `predict` gets an
iterator that asks the workers, and gives predictions in place of the data.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from tfdist.parameter_server.chief.in_order import InOrderFunction
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.data.distributed_data import DataIterator, DistributedData
from tfdist.structures import Structure


class _Predicted(NamedTuple):
    """Predictions for a batch, in place of its data."""

    predictions: Structure


class PredictFunction(InOrderFunction):
    """Joins the predictions that the iterator has fetched from the workers."""

    def __init__(self, strategy: ChiefStrategy, model: keras.Model):
        super().__init__(strategy, model, "predict")
        self._metrics = ["only logs are left out"]

    def __call__(self, data: list) -> Structure:
        """The predictions for several batches, one after the other."""
        if not isinstance(data[0], _Predicted):
            return self.call_keras(data)  # predict_on_batch
        found = [predicted.predictions for predicted in data]
        return tf.nest.map_structure(lambda *parts: _joined(parts), *found)


class PredictedData:
    """What `predict` iterates over.

    Args:
        data: the data.
        function: predicts for the data.
    """

    def __init__(self, data: DistributedData, function: PredictFunction):
        self._data = data
        self._function = function

    def __iter__(self) -> _Predictions:
        return _Predictions(iter(self._data), self._function)


class _Predictions:
    """One pass over the data: gives the predictions for each batch."""

    def __init__(self, iterator: DataIterator, function: PredictFunction):
        self._iterator = iterator
        self._function = function

    def __iter__(self) -> _Predictions:
        return self

    def __next__(self) -> _Predicted:
        outcome = self._function.in_order(self._iterator)
        if outcome is None:
            raise StopIteration
        return _Predicted(outcome.logs)


def _joined(parts: tuple) -> tf.Tensor:
    return parts[0] if len(parts) == 1 else tf.concat(parts, axis=0)
