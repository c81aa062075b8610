"""The estimated and the measured memory of one model, in a process of its own; prints JSON."""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfdist
from benchmarks.common.process import resident

Model = tuple[keras.Model, tuple[int, ...], int | None]


def mlp() -> Model:
    """Six Dense layers of 1536 units."""
    hidden = [layers.Dense(1536, activation="relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((1024,)), *hidden, layers.Dense(10)])
    return model, (1024,), None


def cnn() -> Model:
    """Five convolutions of 32 channels over 64 x 64 pixels."""
    hidden = [layers.Conv2D(32, 3, padding="same", activation="relu") for _ in range(5)]
    ends = [layers.GlobalAveragePooling2D(), layers.Dense(10)]
    return keras.Sequential([keras.Input((64, 64, 3)), *hidden, *ends]), (64, 64, 3), None


def residual() -> Model:
    """Three residual blocks with BatchNormalization over 64 x 64 pixels."""
    image = keras.Input((64, 64, 3))
    x = layers.Conv2D(32, 3, padding="same")(image)
    for _ in range(3):
        y = x
        for _ in range(2):
            y = layers.ReLU()(layers.BatchNormalization()(y))
            y = layers.Conv2D(32, 3, padding="same")(y)
        x = x + y
    x = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(image, x), (64, 64, 3), None


def _block(x: keras.KerasTensor, dropout: float) -> keras.KerasTensor:
    attended = layers.MultiHeadAttention(4, 64, dropout=dropout)(x, x)
    x = layers.LayerNormalization()(x + attended)
    mapped = layers.Dense(256)(layers.Dense(1024, activation="gelu")(x))
    return layers.LayerNormalization()(x + mapped)


def attention() -> Model:
    """Three blocks of attention and a mapping, 128 positions of 256 numbers."""
    x = vectors = keras.Input((128, 256))
    for _ in range(3):
        x = _block(x, 0.0)
    x = layers.Dense(10)(layers.GlobalAveragePooling1D()(x))
    return keras.Model(vectors, x), (128, 256), None


def language_model() -> Model:
    """The same with a vocabulary of 5,000 before and behind, and dropout."""
    tokens = keras.Input((128,), dtype="int32")
    x = layers.Embedding(5000, 256)(tokens)
    for _ in range(3):
        x = _block(x, 0.1)
    return keras.Model(tokens, layers.Dense(5000)(x)), (128,), 5000


def lstm() -> Model:
    """Two LSTM layers of 256 units, 64 time steps."""
    hidden = [layers.LSTM(256, return_sequences=True), layers.LSTM(256)]
    return keras.Sequential([keras.Input((64, 128)), *hidden, layers.Dense(10)]), (64, 128), None


MODELS: dict[str, Callable[[], Model]] = {
    "mlp": mlp,
    "cnn": cnn,
    "residual": residual,
    "attention": attention,
    "language_model": language_model,
    "lstm": lstm,
}


def batch_for(model: Model, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """A random batch: vectors or tokens, and the number of a class for each output."""
    _, shape, vocabulary = model
    rng = np.random.default_rng(0)
    if vocabulary is None:
        inputs = rng.normal(size=(samples, *shape)).astype("float32")
        return inputs, rng.integers(10, size=samples)
    return (
        rng.integers(vocabulary, size=(samples, *shape)).astype("int32"),
        rng.integers(vocabulary, size=(samples, *shape)),
    )


def train_little() -> None:
    """Trains a small model, after which the process has what TensorFlow needs for itself."""
    model = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
    model.compile("adam", "mse", jit_compile=False)
    model.fit(np.ones((8, 8)), np.ones((8, 8)), verbose=0)


def main() -> None:
    """Estimates, trains for three steps, and prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    arguments = parser.parse_args()
    train_little()
    gc.collect()
    idle = resident("VmRSS")
    made = MODELS[arguments.model]()
    data = tf.data.Dataset.from_tensors(batch_for(made, arguments.batch_size)).repeat()
    model, *_ = made
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=False)
    found = tfdist.memory.estimate(model, arguments.batch_size)
    model.fit(data, steps_per_epoch=3, verbose=0)
    measured = resident("VmHWM") - idle
    print(json.dumps({"estimated": found.total, "measured": measured}))


if __name__ == "__main__":
    main()
