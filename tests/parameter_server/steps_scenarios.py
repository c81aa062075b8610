"""Scenarios of steps and single batches; see `tests/parameter_server/scenarios.py`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import tfdist

_RANDOM = np.random.default_rng(1)
_X = _RANDOM.normal(size=(30, 4)).astype("float32")
_Y = _X.sum(axis=1, keepdims=True)


def _linear(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", loss="mse", metrics=["mae"], **options)
    return model


class _PredictsBatches(keras.callbacks.Callback):
    """Predicts for a batch in the middle of training."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.predict_on_batch(_X)


def _refusal(function) -> str:
    """What the error says that `function` raises."""
    try:
        function()
    except ValueError as error:
        return str(error)
    return "nothing was raised"


def single_batches(resolver, folder) -> dict[str, dict[str, Any]]:
    """What single batches and whole runs give, by what the model has done before."""
    found = {}

    def fit(model, **options):
        model.fit(_X, _Y, batch_size=5, verbose=0, **options)

    def several(model):
        model.compile("sgd", loss="mse", metrics=["mae"], steps_per_execution=2)

    done = {
        "nothing": lambda model: None,
        "predict": lambda model: model.predict(_X, verbose=0),
        "evaluate": lambda model: model.evaluate(_X, _Y, verbose=0),
        "fit, validated": lambda model: fit(model, validation_data=(_X, _Y)),
        "fit, predicting": lambda model: fit(model, callbacks=[_PredictsBatches()]),
        "compile, several steps per call": several,
    }
    for name, before in done.items():
        model = _linear(tfdist.ParameterServerStrategy(resolver))
        before(model)

        def single(model=model):
            return [model.predict_on_batch(_X), model.test_on_batch(_X, _Y)]

        found[name] = {
            "before": single(),
            "whole": [
                model.predict(_X, batch_size=8, verbose=0),
                model.evaluate(_X, _Y, batch_size=30, verbose=0),
            ],
            "after": single(),
            "train_on_batch": _refusal(lambda model=model: model.train_on_batch(_X, _Y)),
        }
    return found
