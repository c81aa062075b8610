"""The variables in which Keras' metrics count."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, REPLACED, touch
from tfdist.structures import Structure

_ASSIGN = touch(
    *("keras.src.backend.tensorflow.core:Variable", "assign", REPLACED, "self", "value"),
    why="a metric may add the mean of a replica's samples. On a replica without samples this is "
    "NaN, and then so is the sum over the replicas",
    versions=KERAS,
    instead="a method of `Metric` that calls every `update_state`",
)


def hook_metric_states(hook: Callable[[keras.Variable, Structure], Structure]) -> None:
    """Makes the variables of metrics become `hook(variable, value)` where `value` is assigned."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def assign(self: keras.Variable, value: Structure) -> tf.Tensor:
            if self.synchronization == "on_read":  # Keras makes no others like this
                value = hook(self, value)
            return original(self, value)

        return assign

    _ASSIGN.replace(make)
