"""BatchNormalization: where Keras takes the mean and the variance of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, REPLACED, touch

Moments = tuple[tf.Tensor, tf.Tensor]
"""The mean and the variance of each feature."""

_MOMENTS = touch(
    "keras.src.layers.normalization.batch_normalization:BatchNormalization",
    *("_moments", REPLACED, "self", "inputs", "mask"),
    why="if there is a mask, a layer with `synchronized=True` normalizes each replica's part of "
    "the batch by itself",
    versions=KERAS,
    instead="a BatchNormalization that is synchronized with a mask too",
)


def hook_masked_moments(
    hook: Callable[[Callable[[], Moments], tf.Tensor, tf.Tensor, int], Moments],
) -> None:
    """Makes synchronized BatchNormalization take the moments of masked inputs from `hook`.

    Args:
        hook: `(compute, inputs, mask, axis)`. `compute()` is the original with its arguments filled
            in; `axis` is that of the features.
    """

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def _moments(
            self: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None
        ) -> Moments:
            if mask is None or not self.synchronized:
                return original(self, inputs, mask)
            compute = functools.partial(original, self, inputs, mask)
            return hook(compute, inputs, mask, self.axis)

        return _moments

    _MOMENTS.replace(make)
