"""The data sets that hand batches to devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist.autotuning import without_autotuning
from tfdist.compat.registry import REPLACED, TENSORFLOW, touch

_DEVICE_DATASET = touch(
    *("tensorflow.python.data.ops.multi_device_iterator_ops", "_create_device_dataset", REPLACED),
    *("prototype_ds", "incarnation_id", "prefetch_buffer_size", "experimental_slack"),
    why="each device has a data set of its own, which does not have the options of the user's. It "
    "has nothing to tune, but TensorFlow starts a thread that tunes it, and who deletes the "
    "iterator at the end of an epoch may wait for this thread for as long as the epoch took",
    versions=TENSORFLOW,
    instead="a mended `Model::OptimizeLoop`, which misses that it is cancelled, or "
    "`tf.distribute.InputOptions` with the options of the devices' data sets",
)


def install() -> None:
    """Makes the data sets of devices without a thread that tunes them."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def create(*args: Any, **kwargs: Any) -> tf.data.Dataset:
            return without_autotuning(original(*args, **kwargs))

        return create

    _DEVICE_DATASET.replace(make)
