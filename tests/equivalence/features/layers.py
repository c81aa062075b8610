"""Layers whose gradients or state are special."""

from __future__ import annotations

import functools

import keras
import numpy as np
from keras import optimizers

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import Feature, Outcome, default_data, default_fit


def _embedding(optimizer):
    def build() -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                keras.layers.Embedding(12, 4),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, metrics=["accuracy"])
        return model

    return build


class _DenseEmbedding(keras.layers.Layer):
    """An embedding by multiplication, whose gradient is dense."""

    def build(self, input_shape):
        self.embeddings = self.add_weight(shape=(12, 4), initializer="uniform", name="embeddings")

    def call(self, tokens):
        return keras.ops.matmul(keras.ops.one_hot(tokens, 12), self.embeddings)


def _dense_embedding(optimizer):
    def build() -> keras.Model:
        source = _embedding(optimizer)()
        model = keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                _DenseEmbedding(),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        model.set_weights(source.get_weights())
        model.compile(optimizer(), source.loss, metrics=["accuracy"])
        return model

    return build


class _Positions(keras.layers.Layer):
    """Adds rows of a table of positions, which are the same for each sample."""

    def __init__(self, rows: int):
        super().__init__()
        self.table = keras.layers.Embedding(rows, 4)

    def call(self, x):
        """Adds to tokens [samples, length, 4]."""
        return x + self.table(keras.ops.arange(keras.ops.shape(x)[1]))


class _Distances(keras.layers.Layer):
    """Adds rows of a table of distances, some of them several times."""

    def build(self, shape):
        """Makes the table."""
        self.table = self.add_weight(shape=(3, 4), name="distances")

    def call(self, x):
        """Adds to tokens [samples, 5, 4]."""
        return x + keras.ops.take(self.table, np.array([0, 1, 2, 1, 0]), axis=0)


def _positions(length, optimizer, layer):
    def make() -> keras.Model:
        layers = [keras.layers.Embedding(12, 4), layer(), keras.layers.Dense(8, activation="tanh")]
        pooled = [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((length,), dtype="int32"), *layers, *pooled])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss)
        return model

    return make


def _fit_tokens(model: keras.Model, samples: int = 67, batch_size: int = 16) -> Outcome:
    tokens = np.random.default_rng(4).integers(0, 12, (samples, 5))
    history = model.fit(
        tokens, tokens.sum(axis=1) % 3, batch_size=batch_size, epochs=2, shuffle=False, verbose=0
    )
    return Outcome.of(model, history.history)


def _masked_and_normalized() -> keras.Model:
    """The statistics leave out the tokens that are zero."""
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="int32"),
            keras.layers.Embedding(12, 8, mask_zero=True),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.1), loss, metrics=["accuracy"])
    return model


def _frozen() -> list:
    return [
        keras.layers.Dense(16, activation="relu", trainable=False),
        keras.layers.Dense(16, activation="relu"),
    ]


def _unused_branch() -> keras.Model:
    """One layer gets no gradient, because its output has no loss."""
    inputs = keras.Input((8,))
    outputs = [
        keras.layers.Dense(3, name="used")(inputs),
        keras.layers.Dense(2, name="idle")(inputs),
    ]
    model = keras.Model(inputs, outputs)
    loss = [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None]
    model.compile(optimizers.Adam(0.01), loss)
    return model


def _fit_used(model: keras.Model, batch_size: int = 16) -> Outcome:
    x, y = default_data(64)
    history = model.fit(
        x, [y, np.zeros((64, 2))], batch_size=batch_size, epochs=2, shuffle=False, verbose=0
    )
    return Outcome.of(model, {"loss": history.history["loss"]})


def _convolution() -> list:
    return [
        keras.layers.Reshape((8, 1)),
        keras.layers.Conv1D(4, 3, activation="relu"),
        keras.layers.LayerNormalization(),
        keras.layers.Flatten(),
    ]


def _images() -> list:
    return [
        keras.layers.Reshape((4, 2, 1)),
        keras.layers.Conv2D(4, 2, padding="same", activation="relu"),
        keras.layers.AveragePooling2D(2),
        keras.layers.Flatten(),
    ]


def _recurrent() -> list:
    return [keras.layers.Reshape((4, 2)), keras.layers.LSTM(6)]


def _activity() -> list:
    return [keras.layers.Dense(16, activation="relu", activity_regularizer="l2")]


_ADAM = functools.partial(optimizers.Adam, 0.01)
_CLIPPED = functools.partial(optimizers.SGD, 0.1, global_clipnorm=0.05)

FEATURES = [
    Feature("Embedding (IndexedSlices), SGD", _embedding(lambda: optimizers.SGD(0.1)), _fit_tokens),
    Feature("Embedding (IndexedSlices), Adam", _embedding(_ADAM), _fit_tokens),
    Feature("Embedding (IndexedSlices), global_clipnorm", _embedding(_CLIPPED), _fit_tokens),
    Feature("table of positions, Adam", _positions(5, _ADAM, lambda: _Positions(5)), _fit_tokens),
    Feature(
        "table of positions, texts of any length, clipping",
        _positions(None, _CLIPPED, lambda: _Positions(9)),
        _fit_tokens,
    ),
    Feature("table of distances, Adam", _positions(5, _ADAM, _Distances), _fit_tokens),
    Feature(
        "Embedding, accumulation",
        _embedding(_ADAM),
        functools.partial(_fit_tokens, samples=64, batch_size=16),
        options={"accumulation_steps": 2},
        reference_build=_dense_embedding(_ADAM),
        reference_fit=functools.partial(_fit_tokens, samples=64, batch_size=32),
        note="accumulated gradients are dense: against a dense large batch",
    ),
    Feature(
        "synchronized BatchNormalization behind a mask, last batch of 1",
        _masked_and_normalized,
        functools.partial(_fit_tokens, samples=65),
    ),
    Feature(
        "synchronized BatchNormalization behind a mask, last batch of 3",
        _masked_and_normalized,
        _fit_tokens,
    ),
    Feature("frozen layer", classifier(_ADAM, hidden=_frozen)),
    Feature("gradients that are None", _unused_branch, _fit_used),
    Feature(
        "gradients that are None, accumulation",
        _unused_branch,
        functools.partial(_fit_used, batch_size=8),
        options={"accumulation_steps": 2},
        reference_fit=_fit_used,
    ),
    Feature("convolution, LayerNormalization", classifier(_ADAM, hidden=_convolution)),
    Feature(
        "Conv2D, pooling, last batch of 3",
        classifier(_ADAM, hidden=_images),
        functools.partial(default_fit, samples=67),
    ),
    Feature("LSTM", classifier(_ADAM, hidden=_recurrent)),
    Feature(
        "activity regularizer, last batch of 1",
        classifier(_ADAM, hidden=_activity),
        functools.partial(default_fit, samples=65),
        since=(3, 14),
        note="a sum over the batch before, which tfdist refuses",
    ),
]
