"""What a Keras model consists of."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, touch

_STRATEGY = touch(
    *("keras.src.backend.tensorflow.trainer:TensorFlowTrainer", "_distribute_strategy", READ),
    why="tells whether a model was made in a strategy's scope. For a model that was made in no "
    "scope, the public `distribute_strategy` returns the current strategy",
    versions=KERAS,
    instead="a public property",
)
_LAYERS = touch(
    *("keras.src.layers.layer:Layer", "_flatten_layers", READ, "self"),
    why="finds all layers of a model, even layers in lists and dicts",
    versions=KERAS,
    instead="a public recursive `layers`",
)
_OWN_VARIABLES = touch(
    *("keras.src.layers.layer:Layer", "_non_trainable_variables", READ),
    why="the public `non_trainable_variables` also contains metrics, seeds and the variables of "
    "inner layers",
    versions=KERAS,
    instead="a public list of a layer's own variables",
)


def model_strategy(model: keras.Model) -> tf.distribute.Strategy | None:
    """The strategy in whose scope `model` was created; None outside of any scope."""
    return _STRATEGY.of(model)


def flatten_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """`model` and all layers below it, also those in lists and dicts."""
    return list(_LAYERS.of(model)())


def own_non_trainable_variables(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The variables that `layer` itself created as non-trainable."""
    return list(_OWN_VARIABLES.of(layer))
