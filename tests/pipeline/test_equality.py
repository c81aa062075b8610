"""A model in stages trains as it does on one device."""

import keras
import numpy as np
import pytest

from tests.devices import DEVICES
from tfdist import pipeline

TEXT = np.random.default_rng(0).integers(0, 7, (21, 6))
IMAGES = np.random.default_rng(1).normal(size=(21, 8, 8, 2)).astype("float32")
ROWS = np.random.default_rng(2).normal(size=(21, 5)).astype("float32")


def _block(width):
    """Attention around which something flows: a model that is one layer of a chain."""
    x = keras.Input((None, width))
    y = x + keras.layers.MultiHeadAttention(2, 4)(x, x)
    return keras.Model(
        x, y + keras.layers.Dense(width, "gelu")(keras.layers.LayerNormalization()(y))
    )


def _dense():
    penalty = keras.regularizers.L2(0.01)
    layers = keras.layers
    normalization = layers.Normalization()
    normalization.adapt(3 * ROWS + 1)
    return keras.Sequential(
        [
            keras.Input((5,)),
            normalization,
            layers.Dense(16, "tanh", kernel_regularizer=penalty),
            layers.Dense(8, "tanh"),
            layers.Dense(8, trainable=False),
            layers.Dense(3),
        ]
    )


def _images():
    x = keras.Input((8, 8, 2))
    y = keras.layers.Conv2D(4, 3, activation="relu")(x)
    y = keras.layers.GroupNormalization(2)(y)
    y = keras.layers.MaxPooling2D()(y)
    y = keras.layers.Flatten()(y)
    return keras.Model(x, keras.layers.Dense(3)(y))


def _masked_text():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(7, 8, mask_zero=True),
            layers.LSTM(8, return_sequences=True),
            layers.Dense(3),
        ]
    )


def _attention():
    x = keras.Input((6,), dtype="int32")
    y = keras.layers.Embedding(7, 8)(x)
    y = _block(8)(_block(8)(y))
    y = keras.layers.GlobalAveragePooling1D()(y)
    return keras.Model(x, keras.layers.Dense(3)(y))


def _weighted():
    return np.linspace(0.1, 2.0, len(ROWS)).astype("float32")


SGD = {"optimizer": lambda: keras.optimizers.SGD(0.02, momentum=0.9)}
CASES = {
    "dense": (_dense, ROWS, 3, SGD, {}),
    "dense with sample weights": (_dense, ROWS, 3, SGD, {"sample_weight": _weighted()}),
    "a sum": (
        _dense,
        ROWS,
        3,
        {
            "optimizer": lambda: keras.optimizers.SGD(0.002),
            "loss": lambda: keras.losses.MeanSquaredError("sum"),
        },
        {},
    ),
    "clipped": (
        *(_dense, ROWS, 3),
        {"optimizer": lambda: keras.optimizers.SGD(0.05, 0.9, global_clipnorm=0.1)},
        {},
    ),
    "average of weights": (
        *(_dense, ROWS, 3),
        {"optimizer": lambda: keras.optimizers.SGD(0.02, use_ema=True, ema_overwrite_frequency=2)},
        {},
    ),
    "accumulated": (
        *(_dense, ROWS, 3),
        {"optimizer": lambda: keras.optimizers.SGD(0.02, gradient_accumulation_steps=2)},
        {},
    ),
    "several steps in one": (_dense, ROWS, 3, {**SGD, "steps_per_execution": 2}, {}),
    "eager": (_dense, ROWS, 3, {**SGD, "run_eagerly": True}, {}),
    "convolutions": (_images, IMAGES, 3, SGD, {}),
    "masks": (_masked_text, TEXT, (6, 3), SGD, {}),
    "attention": (_attention, TEXT, 3, SGD, {}),
    "rows of a table": (
        *(_attention, TEXT, 3),
        {"optimizer": lambda: keras.optimizers.Adam(0.002, epsilon=1e-3)},
        {},
    ),
}


def _compiled(model, optimizer, loss=keras.losses.MeanSquaredError, **options):
    model.compile(optimizer(), loss(), weighted_metrics=["mae"], **options)
    return model


# Cases of which another one sees most mistakes.
USUAL = {"dense with sample weights", "clipped"}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in USUAL else [pytest.mark.full]) for case in CASES],
)
def test_weights_and_logs_are_those_of_one_device(case):
    make, x, shape, compiled, fitted = CASES[case]
    y = np.random.default_rng(3).normal(size=(len(x), *np.atleast_1d(shape))).astype("float32")
    keras.utils.set_random_seed(1)
    plain = make()
    piped = pipeline.stages(plain, DEVICES[:2], micro_batches=4)
    results = []
    for model in (_compiled(plain, **compiled), _compiled(piped, **compiled)):
        first = model.get_weights()
        # Batches of 9, 9 and 3 samples: micro-batches of 3, 2, 2 and 2, at last of 1, 1 and 1,
        # and one that is cut off.
        fit = model.fit(x, y, batch_size=9, epochs=2, shuffle=False, verbose=0, **fitted)
        predicted = model.predict(x[:7], batch_size=3, verbose=0)
        evaluated = model.evaluate(x, y, batch_size=9, verbose=0)
        moved = [abs(a - b).max() for a, b in zip(model.get_weights(), first)]
        assert max(moved) > 1e-3
        results.append([*fit.history["loss"], *fit.history["mae"], evaluated, predicted])
    for first, second in zip(plain.get_weights(), piped.get_weights()):
        np.testing.assert_allclose(first, second, atol=1e-6)
    for first, second in zip(*results):
        np.testing.assert_allclose(first, second, atol=2e-5, rtol=1e-5)


def test_a_tensor_in_a_list_or_a_dict_is_the_input():
    x = keras.Input((5,), name="q")
    y = keras.layers.Dense(3)(keras.layers.Dense(8)(x))
    targets = np.ones((21, 3), "float32")
    for plain in (keras.Model(x, y), keras.Model([x], [y])):
        plain.layers[1].kernel.regularizer = keras.regularizers.L2(0.1)  # later than it was made
        piped = pipeline.stages(plain, DEVICES[:2], micro_batches=4)
        for given in (ROWS, [ROWS], {"q": ROWS}):
            expected, found = (_compiled(model, **SGD) for model in (plain, piped))
            fits = [model.fit(given, targets, verbose=0).history for model in (expected, found)]
            np.testing.assert_allclose(fits[1]["loss"], fits[0]["loss"], rtol=1e-6)
            predicted = [model.predict(given, verbose=0) for model in (expected, found)]
            np.testing.assert_allclose(*map(np.squeeze, predicted), atol=1e-6)
