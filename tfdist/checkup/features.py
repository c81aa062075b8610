"""What is trained by all ranks and by one device, to be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

EXACT = 1e-6
"""What a weight may differ by, where nothing is rounded on purpose."""

# fp16 keeps 11 bits of a gradient. The gradients are below 1, the learning rate is 0.1, and there
# are 6 updates, so a weight is off by less than 6 * 0.1 * 2**-11, for each of two roundings.
_HALF = 6e-4

_FEATURES, _CLASSES, _WORDS = 8, 3, 20


@dataclasses.dataclass(frozen=True)
class Feature:
    """Something that users train with.

    Attributes:
        name: for people.
        optimizer: makes the optimizer of one device.
        layers: makes the layers before the last one.
        sizes: from the number of replicas, the sizes of the global batches of an epoch.
        options: of the strategy.
        alone: options of the optimizer on one device that mean the same.
        words: whether the inputs are numbers of words.
        tolerance: what a weight may differ by.
    """

    name: str
    optimizer: Callable[..., keras.optimizers.Optimizer]
    layers: Callable[[], list]
    sizes: Callable[[int], list[int]]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    alone: dict[str, Any] = dataclasses.field(default_factory=dict)
    words: bool = False
    tolerance: float = EXACT

    def build(self, is_alone: bool) -> keras.Model:
        """The model, compiled; in the scope of the strategy, or `is_alone`."""
        last = keras.layers.Dense(_CLASSES)
        shape = (4,) if self.words else (_FEATURES,)
        model = keras.Sequential(
            [keras.Input(shape, dtype="int32" if self.words else None), *self.layers(), last]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(self.optimizer(**(self.alone if is_alone else {})), loss)
        return model

    def data(self, replicas: int) -> tf.data.Dataset:
        """The global batches of an epoch, the same in all processes."""
        random = np.random.default_rng(1)
        sizes = self.sizes(replicas)
        if self.words:
            x = random.integers(_WORDS, size=(sum(sizes), 4)).astype("int32")
        else:
            x = random.normal(size=(sum(sizes), _FEATURES)).astype("float32")
        y = random.integers(_CLASSES, size=sum(sizes)).astype("int32")
        ends = np.cumsum(sizes)

        def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for end, size in zip(ends, sizes):
                # Copies, as TensorFlow may compute in the memory of an array that it is given.
                yield x[end - size : end].copy(), y[end - size : end].copy()

        if len(set(sizes)) == 1:
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(sizes[0], drop_remainder=True)
        specs = (tf.TensorSpec([None, x.shape[1]], x.dtype), tf.TensorSpec([None], y.dtype))
        data = tf.data.Dataset.from_generator(batches, output_signature=specs)
        return data.apply(tf.data.experimental.assert_cardinality(len(sizes)))


def _even(replicas: int) -> list[int]:
    return [4 * replicas] * 3


def _short_last(replicas: int) -> list[int]:
    return [4 * replicas, 4 * replicas, replicas // 2 + 1]


def _less_last(replicas: int) -> list[int]:
    return [4 * replicas, 4 * replicas, 3 * replicas + 1]


def _many(replicas: int) -> list[int]:
    return [4 * replicas, 1, 3 * replicas + 1, 2 * replicas - 1]


def _dense() -> list:
    return [keras.layers.Dense(64, activation="tanh")]


def _normalized() -> list:
    return [keras.layers.Dense(16), keras.layers.BatchNormalization(synchronized=True)]


def _embedded() -> list:
    return [keras.layers.Embedding(_WORDS, 8), keras.layers.Flatten()]


def _sgd(**options: int) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, **options)


def _momentum(**options: int) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **options)


def _adam(**options: int) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(0.01, **options)


def _clipped(**options: int) -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, global_clipnorm=0.1, **options)


def _four(replicas: int) -> list[int]:
    return [4 * replicas] * 4


ALL = (
    Feature("SGD with Nesterov momentum", _momentum, _dense, _even),
    Feature("Adam", _adam, _dense, _even),
    Feature("a short last batch", _sgd, _dense, _short_last),
    Feature("clipping of the global norm", _clipped, _dense, _short_last),
    Feature(
        "accumulation over 2 batches",
        *(_sgd, _dense, _four),
        options={"accumulation_steps": 2},
        alone={"gradient_accumulation_steps": 2},
    ),
    Feature("synchronized BatchNormalization", _momentum, _normalized, _less_last),
    Feature("an embedding, batches of many sizes", _momentum, _embedded, _many, words=True),
    Feature("compression to fp16", _sgd, _dense, _even, {"compression": "fp16"}, tolerance=_HALF),
)
EPOCHS = 2
