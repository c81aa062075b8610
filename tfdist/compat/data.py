"""The data sets that Keras makes of arrays and of a `PyDataset`."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, REPLACED, Touch, touch

_LENGTH: dict[str, str] = {
    "why": "processes that know the number of batches need not ask each other in each step "
    "whether data are left. Keras' adapters know this number, but their data sets do not",
    "versions": KERAS,
    "instead": "a data set with its cardinality set",
}
_ADAPTERS = [
    (
        touch(adapter, "get_tf_dataset", REPLACED, "self", **_LENGTH),
        touch(adapter, "num_batches", READ, **_LENGTH),
    )
    for adapter in (
        "keras.src.trainers.data_adapters.array_data_adapter:ArrayDataAdapter",
        "keras.src.trainers.data_adapters.py_dataset_adapter:PyDatasetAdapter",
    )
]

_lengths: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def number_of_batches(dataset: tf.data.Dataset) -> int:
    """The cardinality of `dataset`, known also where Keras made it of arrays or a `PyDataset`."""
    return _lengths.get(dataset, int(dataset.cardinality()))


def counted_by_keras(dataset: tf.data.Dataset) -> int:
    """The number of batches, where Keras made `dataset` of arrays or a `PyDataset` and knows it.

    Otherwise `tf.data.UNKNOWN_CARDINALITY`.
    """
    return _lengths.get(dataset, tf.data.UNKNOWN_CARDINALITY)


_ITERATOR = touch(
    *("keras.src.backend.tensorflow.trainer:TFEpochIterator", "__init__", REPLACED),
    *("self", "distribute_strategy"),
    why="data that Keras distributes for its own loops may come to the step as whole batches; data "
    "that users distribute must not",
    versions=KERAS,
    instead="a method of the strategy that Keras' trainer calls",
)
_here = threading.local()


def keras_distributes() -> bool:
    """Whether this thread distributes data for Keras' own loops, not for a loop of a user."""
    return getattr(_here, "is_keras", False)


def _note_that_keras_distributes(original: Callable) -> Callable:
    @functools.wraps(original)
    def make_iterator(self: object, *args: object, **kwargs: object) -> None:
        before, _here.is_keras = keras_distributes(), True
        try:
            original(self, *args, **kwargs)
        finally:
            _here.is_keras = before

    return make_iterator


def install() -> None:
    """Makes Keras note the length of data sets that it makes, and that it distributes data."""
    _ITERATOR.replace(_note_that_keras_distributes)

    def note_with(length: Touch, original: Callable) -> Callable:
        @functools.wraps(original)
        def get_tf_dataset(self: Any) -> tf.data.Dataset:
            dataset = original(self)
            if length.of(self) is not None:
                _lengths[dataset] = length.of(self)
            return dataset

        return get_tf_dataset

    for get, length in _ADAPTERS:
        get.replace(functools.partial(note_with, length))
