"""How steps are run: one by one, eagerly, several at once, again, and from files."""

from __future__ import annotations

import functools
import pathlib
import tempfile

import keras
import numpy as np
from keras import optimizers

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import (
    Feature,
    Outcome,
    default_data,
    default_fit,
    optimizer_state,
)

_ADAM = classifier(lambda: optimizers.Adam(0.01))


def _on_batch(model: keras.Model) -> Outcome:
    x, y = default_data(37)
    history: dict[str, list[float]] = {"train": [], "test": []}
    predictions = []
    for start in range(0, 37, 9):
        batch = slice(start, start + 9)
        weights = np.linspace(0.5, 2.0, len(y[batch]))
        history["train"] += model.train_on_batch(x[batch], y[batch], sample_weight=weights)
        history["test"] += model.test_on_batch(x[batch], y[batch])
        predictions.append(model.predict_on_batch(x[batch]))
    return Outcome.of(model, history, predictions=np.concatenate(predictions))


def _twice(model: keras.Model) -> Outcome:
    first = default_fit(model)
    second = default_fit(model, samples=67)
    second.history.update({f"first_{name}": values for name, values in first.history.items()})
    return second


def _weights_file(model: keras.Model) -> Outcome:
    """Saved after training, damaged, loaded, trained on."""
    default_fit(model)
    with tempfile.TemporaryDirectory() as folder:
        path = str(pathlib.Path(folder) / "model.weights.h5")
        model.save_weights(path)
        default_fit(model)
        model.load_weights(path)
    outcome = default_fit(model, samples=67)
    outcome.extra["optimizer"] = optimizer_state(model)
    return outcome


def _evaluate_only(model: keras.Model) -> Outcome:
    x, y = default_data(67)
    logs = model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)
    return Outcome.of(
        model,
        {name: [value] for name, value in logs.items()},
        predictions=model.predict(x, batch_size=16, verbose=0),
    )


FEATURES = [
    Feature("train_on_batch, test_on_batch, predict_on_batch", _ADAM, _on_batch),
    Feature(
        "steps_per_execution=4",
        classifier(lambda: optimizers.Adam(0.01), steps_per_execution=4),
        functools.partial(default_fit, samples=67),
    ),
    Feature(
        "run_eagerly",
        classifier(lambda: optimizers.Adam(0.01, global_clipnorm=0.1), run_eagerly=True),
        functools.partial(default_fit, samples=35),
    ),
    Feature(
        "run_eagerly, accumulation",
        classifier(lambda: optimizers.Adam(0.01), run_eagerly=True),
        functools.partial(default_fit, samples=32, batch_size=8),
        options={"accumulation_steps": 2},
        reference_fit=functools.partial(default_fit, samples=32, batch_size=16),
    ),
    Feature(
        "validation_data, last batch of 3",
        _ADAM,
        functools.partial(default_fit, samples=67, validate=True),
    ),
    Feature("a second fit continues", _ADAM, _twice),
    Feature("save_weights, load_weights", _ADAM, _weights_file),
    Feature("evaluate and predict without training", _ADAM, _evaluate_only),
]
