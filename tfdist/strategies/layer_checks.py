"""What the layers of a model must be like, looked at before it trains."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step import keras_steps
from tfdist.validation import check_layers, check_model_scope, check_no_synchronized_layers


def check_before_training(
    model: keras.Model, strategy: tf.distribute.Strategy, exchanges: bool
) -> None:
    """Checks the layers of `model`, and warns if training will not equal that on one device.

    Args:
        model: the model.
        strategy: the strategy that trains it.
        exchanges: whether replicas can exchange values within a step.

    Raises:
        ValueError: for a model of another scope, and for layers that need the whole batch.
    """
    layers = compat.flatten_layers(model)
    check_model_scope(model, layers, strategy, compat.stored)
    check_layers(layers, strategy.num_replicas_in_sync)
    if not exchanges:
        check_no_synchronized_layers(layers, "With `local` replicas")
    elif strategy.num_replicas_in_sync > 1:
        keras_steps.warn_of_unsynchronized_layers(model)
