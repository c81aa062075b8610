"""Losses that are normalized by something else than the number of samples, or not at all."""

from __future__ import annotations

import functools

import keras
import numpy as np

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import Feature, Outcome, default_data, default_fit


def _crossentropy(reduction: str):
    return lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def _fit_weighted(model: keras.Model, samples: int = 64) -> Outcome:
    weights = np.random.default_rng(1).uniform(0.0, 3.0, samples)
    return default_fit(model, samples, sample_weight=weights)


_SMALL = functools.partial(keras.optimizers.SGD, 0.01)


def _tagger(**loss_options):
    """Labels each token of padded sequences; the padding is masked."""

    def build() -> keras.Model:
        tokens = keras.Input((6,), dtype="int32")
        x = keras.layers.Embedding(20, 8, mask_zero=True)(tokens)
        model = keras.Model(tokens, keras.layers.Dense(4)(x))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss_options)
        model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
        return model

    return build


def _fit_tagger(model: keras.Model, samples: int = 64, weighted: bool = False) -> Outcome:
    random = np.random.default_rng(3)
    tokens = random.integers(1, 20, (samples, 6))
    lengths = random.integers(1, 7, samples)
    tokens[np.arange(6)[None, :] >= lengths[:, None]] = 0
    weights = random.uniform(0.2, 2.0, (samples, 6)) if weighted else None
    history = model.fit(
        tokens, tokens % 4, sample_weight=weights, batch_size=16, epochs=2, shuffle=False, verbose=0
    )
    return Outcome.of(model, history.history)


def _two_heads() -> keras.Model:
    inputs = keras.Input((8,))
    x = keras.layers.Dense(16, activation="relu", kernel_regularizer="l2")(inputs)
    outputs = [keras.layers.Dense(3, name="mean")(x), keras.layers.Dense(3, name="sum")(x)]
    model = keras.Model(inputs, outputs)
    model.compile(
        _SMALL(), [_crossentropy("sum_over_batch_size")(), _crossentropy("sum")()], [1.0, 0.1]
    )
    return model


def _fit_two_heads(model: keras.Model, samples: int) -> Outcome:
    x, y = default_data(samples)
    history = model.fit(x, [y, y], batch_size=16, epochs=2, shuffle=False, verbose=0)
    return Outcome.of(model, {"loss": history.history["loss"]})


def _scalar_loss(y_true, y_pred):
    """A loss function that takes the mean over the batch itself."""
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y_true, y_pred, True))


def _masked_mean(y_true, y_pred):
    """The mean over the samples of other classes than the last one."""
    ops = keras.ops
    losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    mask = ops.cast(ops.reshape(y_true, ops.shape(losses)) != 2, losses.dtype)
    return ops.sum(losses * mask) / ops.sum(mask)


def _dice(y_true, y_pred):
    """The overlap of classes and probabilities over the whole batch, as in `keras.losses.Dice`."""
    ops = keras.ops
    truth = ops.one_hot(ops.reshape(y_true, [-1]), 3)
    found = ops.softmax(y_pred)
    return 1.0 - 2.0 * ops.sum(truth * found) / (ops.sum(truth) + ops.sum(found))


FEATURES = [
    Feature("loss reduction 'sum'", classifier(_SMALL, loss=_crossentropy("sum"))),
    Feature(
        "loss reduction 'sum', last batch of 1",
        classifier(_SMALL, loss=_crossentropy("sum")),
        functools.partial(default_fit, samples=65),
    ),
    Feature("loss reduction 'none'", classifier(_SMALL, loss=_crossentropy("none"))),
    Feature(
        "loss reduction 'none', last batch of 3",
        classifier(_SMALL, loss=_crossentropy("none")),
        functools.partial(default_fit, samples=67),
        history=False,
        note="the reported loss is a mean weighted by the replicas' samples, squared",
    ),
    Feature(
        "loss reduction 'mean_with_sample_weight'",
        classifier(loss=_crossentropy("mean_with_sample_weight")),
        _fit_weighted,
    ),
    Feature(
        "loss reduction 'mean_with_sample_weight', last batch of 3",
        classifier(loss=_crossentropy("mean_with_sample_weight")),
        functools.partial(_fit_weighted, samples=67),
    ),
    Feature("masked loss (mask_zero)", _tagger(), _fit_tagger),
    Feature("masked loss, last batch of 1", _tagger(), functools.partial(_fit_tagger, samples=65)),
    Feature(
        "masked loss, sample_weight",
        _tagger(),
        functools.partial(_fit_tagger, weighted=True),
    ),
    Feature(
        "masked loss, 'mean_with_sample_weight'",
        _tagger(reduction="mean_with_sample_weight"),
        functools.partial(_fit_tagger, samples=66, weighted=True),
    ),
    Feature(
        "outputs of different reductions",
        _two_heads,
        functools.partial(_fit_two_heads, samples=67),
    ),
    Feature(
        "loss function that returns a scalar",
        classifier(loss=lambda: _scalar_loss),
        functools.partial(default_fit, samples=67),
    ),
    Feature(
        "masked mean by hand, last batch of 3",
        classifier(loss=lambda: _masked_mean),
        functools.partial(default_fit, samples=67),
        history=False,
        note="the reported loss is a mean weighted by samples, not by the mask",
    ),
    Feature(
        "overlap of the whole batch (Dice), last batch of 3",
        classifier(loss=lambda: _dice),
        functools.partial(default_fit, samples=67),
    ),
]
