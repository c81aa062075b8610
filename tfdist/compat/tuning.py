"""TensorFlow's tuning of data sets, which may hold up the end of an epoch.

A thread of each iterator tunes the pipeline, after 10 ms, 20 ms, 40 ms and so on, up to a minute.
Who deletes the iterator waits for this thread. The thread may miss that it is to end, and sleep on:
as long again as the iterator has lived.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from tfdist.compat.registry import READ, REPLACED, TENSORFLOW, touch

_DATA_SETS = "tensorflow.python.data.ops.dataset_ops"
_KINDS: dict[str, str] = {
    "why": "where a data set has a plain `map`, the tuning makes it parallel, and stays on",
    "versions": TENSORFLOW,
    "instead": "a mended `Model::OptimizeLoop`, which misses that it is cancelled",
}
_INPUTS = touch(f"{_DATA_SETS}:DatasetV2", "_inputs", READ, "self", **_KINDS)
_MAP = touch("tensorflow.python.data.ops.map_op", "_MapDataset", READ, **_KINDS)
# Of a data set that a graph describes, Python does not know what there is in it.
_UNKNOWN = touch(_DATA_SETS, "_VariantDataset", READ, **_KINDS)
_DEVICE_DATASET = touch(
    *("tensorflow.python.data.ops.multi_device_iterator_ops", "_create_device_dataset", REPLACED),
    *("prototype_ds", "incarnation_id", "prefetch_buffer_size", "experimental_slack"),
    why="each device has a data set of its own, without the options of the user's. It has nothing "
    "to tune, but is tuned, and who deletes its iterator at the end of an epoch may wait for that",
    versions=TENSORFLOW,
    instead="`tf.distribute.InputOptions` with the options of the devices' data sets",
)


def without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with `options.autotune.enabled` false, where nothing is lost by that.

    It stays as it is where its options say something about tuning. So it does where it has a plain
    `map`, without `num_parallel_calls`: TensorFlow makes such a `map` parallel, but only where it
    tunes. Without tuning, `tf.data.AUTOTUNE` stands for as many parallel calls as there are
    threads, 16 at most, and `prefetch(tf.data.AUTOTUNE)` adapts itself.

    Args:
        dataset: as the user, or Keras, made it. What reads it must read ahead, as TensorFlow no
            longer adds a `prefetch`.
    """
    options = dataset.options()
    if options.autotune != tf.data.Options().autotune:
        return dataset
    optimizes = options.experimental_optimization
    refuses = (optimizes.apply_default_optimizations, optimizes.map_parallelization)
    if False not in refuses and _may_have_plain_map(dataset):
        return dataset
    return _untuned(dataset)


def _may_have_plain_map(dataset: tf.data.Dataset) -> bool:
    if isinstance(dataset, (_MAP.get(), _UNKNOWN.get())):
        return True
    return any(_may_have_plain_map(source) for source in _INPUTS.of(dataset)())


def _untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def install() -> None:
    """Turns the tuning of devices' data sets off."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def create(*args: object, **kwargs: object) -> tf.data.Dataset:
            return _untuned(original(*args, **kwargs))

        return create

    _DEVICE_DATASET.replace(make)
