"""The callback that notices what a strategy cannot see: no data, or a model of another scope."""

from __future__ import annotations

import keras
import tensorflow as tf


class TrainingChecks(keras.callbacks.Callback):
    """Refuses to train a model that was not built in the strategy's scope, or without data.

    Keras would silently train such a model on one device. Without data, Keras only warns.
    `strategy.callbacks()` contains this callback.

    Args:
        strategy: the strategy in whose scope the model must have been built.

    Raises:
        ValueError: from `fit`. If the model is the reason, before the first step.
    """

    # The processes of a job need not agree after each batch because of this callback.
    decides_in_batches = False

    def __init__(self, strategy: tf.distribute.Strategy):
        super().__init__()
        self._strategy = strategy
        self._has_data = False

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

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Waits for the first batch."""
        self._has_data = False

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes that there was a batch."""
        self._has_data = True

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Raises if there was no batch."""
        if not self._has_data:
            raise ValueError(
                "The data set has no batches; give it at least one. "
                f"Received: nothing to train on in epoch {epoch + 1}"
            )
