"""Which data sets TensorFlow tunes while they are read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import tensorflow as tf
from tensorflow.python.data.ops.multi_device_iterator_ops import OwnedMultiDeviceIterator


@contextlib.contextmanager
def recorded() -> Iterator[list[bool | None]]:
    """Gives a list of `options.autotune.enabled` of all data sets that iterators are made of."""
    found: list[bool | None] = []

    def recording(original):
        def make(self, dataset=None, *args, **kwargs):
            source = self if dataset is None else dataset
            if isinstance(source, tf.data.Dataset):
                found.append(source.options().autotune.enabled)
            given = () if dataset is None else (dataset,)
            return original(self, *given, *args, **kwargs)

        return make

    iter_of_dataset = recording(tf.data.Dataset.__iter__)
    iter_of_devices = recording(OwnedMultiDeviceIterator.__init__)
    with (
        mock.patch.object(tf.data.Dataset, "__iter__", iter_of_dataset),
        mock.patch.object(OwnedMultiDeviceIterator, "__init__", iter_of_devices),
    ):
        yield found
