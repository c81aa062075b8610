"""The models of `work.py` for Keras 3 and for tf_keras, whose layers have the same names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from benchmarks.side_by_side import work


def build(name: str, keras: Any) -> Any:
    """A model that gives logits.

    Args:
        name: the name of the work.
        keras: the module, `keras` or `tf_keras`.
    """
    task = work.WORKS[name]
    inputs = keras.Input(task.shape, dtype="int32" if task.tokens else "float32")
    return keras.Model(inputs, _BODIES[task.model](inputs, task, keras.layers))


def loss(keras: Any) -> Any:
    """The loss of all models."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer(name: str, keras: Any) -> Any:
    """The optimizer of a work."""
    return keras.optimizers.SGD(work.WORKS[name].learning_rate, momentum=work.MOMENTUM)


def _mlp(x: Any, task: work.Work, layers: Any) -> Any:
    for units in work.MLP_UNITS:
        x = layers.Dense(units, activation="relu")(x)
    return layers.Dense(task.classes)(x)


def _cnn(x: Any, task: work.Work, layers: Any) -> Any:
    """Stages of residual blocks; where a stage begins, the shortcut is a convolution."""

    def convolved(x: Any, width: int, kernel: int, stride: int) -> Any:
        x = layers.Conv2D(width, kernel, strides=stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    x = layers.ReLU()(convolved(x, work.CNN_WIDTHS[0], 3, 1))
    for stage, width in enumerate(work.CNN_WIDTHS):
        for block in range(work.CNN_BLOCKS):
            stride = 2 if stage and not block else 1
            y = layers.ReLU()(convolved(x, width, 3, stride))
            y = convolved(y, width, 3, 1)
            shortcut = convolved(x, width, 1, stride) if stride > 1 else x
            x = layers.ReLU()(layers.Add()([y, shortcut]))
    return layers.Dense(task.classes)(layers.GlobalAveragePooling2D()(x))


def _transformer(x: Any, task: work.Work, layers: Any) -> Any:
    """Blocks that normalize before attention and before the two dense layers; no positions."""
    width = work.WIDTH
    x = layers.Embedding(task.tokens, width)(x)
    for _ in range(work.BLOCKS):
        y = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(work.HEADS, width // work.HEADS)
        x = layers.Add()([x, attention(y, y, use_causal_mask=True)])
        y = layers.Dense(4 * width, activation="relu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    return layers.Dense(task.classes)(layers.LayerNormalization()(x))


def _embedding(x: Any, task: work.Work, layers: Any) -> Any:
    x = layers.Embedding(task.tokens, work.EMBEDDING_WIDTH)(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(work.EMBEDDING_UNITS, activation="relu")(x)
    return layers.Dense(task.classes)(x)


def _variables(count: int, x: Any, task: work.Work, layers: Any) -> Any:
    """A model of `count` vectors. Their gradients together cost no more than copies."""

    class Vectors(layers.Layer):
        def build(self, shape: Any) -> None:
            size = (work.IN_VARIABLES // count,)
            self.vectors = [
                self.add_weight(shape=size, initializer="zeros", name=f"vector{number}")
                for number in range(count)
            ]

        def call(self, x: Any) -> Any:
            joined = tf.concat([tf.convert_to_tensor(vector) for vector in self.vectors], 0)
            return x * tf.reduce_mean(tf.reshape(joined, (-1, task.classes)), 0)

    return Vectors()(x)


_BODIES: dict[str, Callable[[Any, work.Work, Any], Any]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "transformer": _transformer,
    "embedding": _embedding,
    **{f"variables-{count}": functools.partial(_variables, count) for count in work.VARIABLES},
}
