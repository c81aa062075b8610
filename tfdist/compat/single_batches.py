"""Keras' methods on single batches."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from tfdist.compat.registry import KERAS, REPLACED, touch

_ON_BATCH = [
    touch(
        *("keras.src.backend.tensorflow.trainer:TensorFlowTrainer", name, REPLACED, "self", "x"),
        why="the processes compare the data that each process was given",
        versions=KERAS,
        instead="a callback for single batches",
    )
    for name in ("train_on_batch", "test_on_batch", "predict_on_batch")
]


def hook_single_batches(hook: Callable[[keras.Model, str, dict[str, Any]], None]) -> None:
    """Calls `hook(model, method name, arguments)` before `train_on_batch` and its like begin."""

    def make(name: str, original: Callable) -> Callable:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def on_batch(self: keras.Model, *args: Any, **kwargs: Any) -> Any:
            hook(self, name, signature.bind(self, *args, **kwargs).arguments)
            return original(self, *args, **kwargs)

        return on_batch

    for method in _ON_BATCH:
        method.replace(functools.partial(make, method.name))
