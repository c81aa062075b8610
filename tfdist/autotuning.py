"""TensorFlow's tuning of input pipelines, which may hold up the end of an epoch."""

from __future__ import annotations

import tensorflow as tf


def without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with `options.autotune.enabled` false, unless its options have a value for that.

    A thread of each iterator tunes the pipeline, after 10 ms, 20 ms, 40 ms and so on, up to a
    minute. Who deletes the iterator waits for this thread. The thread may miss that it is to end,
    and sleep on: as long again as the iterator has lived. Without tuning, `tf.data.AUTOTUNE` stands
    for as many parallel calls as there are threads, 16 at most, and `prefetch(tf.data.AUTOTUNE)`
    adapts itself.

    Example:

    >>> import tensorflow as tf
    >>> from tfdist.autotuning import without_autotuning
    >>> without_autotuning(tf.data.Dataset.range(3)).options().autotune.enabled
    False
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
