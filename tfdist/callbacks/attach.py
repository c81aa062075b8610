"""The callback that notices a model which the strategy would not distribute."""

from __future__ import annotations

import keras
import tensorflow as tf


class RequireScope(keras.callbacks.Callback):
    """Refuses to train a model that was not built in the strategy's scope.

    Keras trains such a model on one device without a word. `strategy.callbacks()` contains it.

    Args:
        strategy: the strategy whose scope is meant.

    Raises:
        ValueError: from `fit`, before its first step.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        super().__init__()
        self._strategy = strategy

    def set_model(self, model: keras.Model) -> None:
        """Checks `model`; Keras calls it when `fit` starts."""
        super().set_model(model)
        if model.distribute_strategy is not self._strategy:
            raise ValueError(
                f"The model was not built in the scope of this {type(self._strategy).__name__}, so "
                "it would not be distributed. Build and compile it inside `with "
                f"strategy.scope():`. Received: model={model.name}, built under "
                f"{type(model.distribute_strategy).__name__}"
            )
