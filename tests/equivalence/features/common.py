"""Small models that several themes train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras


def classifier(
    optimizer: Callable[[], keras.optimizers.Optimizer] = lambda: keras.optimizers.SGD(0.1),
    hidden: Callable[[], list] = lambda: [keras.layers.Dense(16, activation="relu")],
    metrics: tuple = ("accuracy",),
    loss: Callable[[], Any] = lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    **compile_options: Any,
) -> Callable[[], keras.Model]:
    """Returns a function that builds and compiles a classifier of 8 features in 3 classes."""

    def build() -> keras.Model:
        model = keras.Sequential([keras.Input((8,)), *hidden(), keras.layers.Dense(3)])
        model.compile(optimizer=optimizer(), loss=loss(), metrics=list(metrics), **compile_options)
        return model

    return build
