"""Callbacks that are copied before they train, as KerasTuner does for each trial."""

import copy

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES

X = np.ones((32, 4), "float32")
Y = np.ones((32, 1), "float32")


def fit(strategy, callbacks):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model.fit(X, Y, batch_size=8, epochs=2, verbose=0, callbacks=callbacks).history


@pytest.mark.parametrize("options", [{}, {"local": tfdist.LocalSGD(2)}, {"balance": True}], ids=str)
def test_copies_of_a_strategys_callbacks_train_under_it(options, tmp_path):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], **options)
    path = tmp_path / "report.html"
    callbacks = strategy.callbacks(report=path, log_dir=tmp_path)
    for _ in range(2):
        history = fit(strategy, copy.deepcopy(callbacks))
        assert "step_seconds" in history and ("drift" in history) == ("local" in options)
        path.unlink()
    assert list((tmp_path / "ranks").iterdir())


def test_a_copy_refuses_models_of_other_scopes_too(two_replicas):
    callbacks = copy.deepcopy(two_replicas.callbacks())
    with pytest.raises(ValueError, match="not built in the scope of this MirroredStrategy"):
        fit(tfdist.MirroredStrategy(DEVICES[:2]), callbacks)


def test_a_strategy_is_no_other_one_in_a_copy(two_replicas):
    assert copy.deepcopy({"strategy": two_replicas})["strategy"] is two_replicas


def test_other_callbacks_can_be_copied(two_replicas, tmp_path):
    callbacks = [
        tfdist.callbacks.BroadcastGlobalVariables(),
        tfdist.callbacks.LearningRateWarmup(0.1, steps_per_epoch=4),
        tfdist.callbacks.MetricAverage(),
        tfdist.callbacks.StragglerMonitor(),
        tfdist.callbacks.TerminateOnNaN(),
        tfdist.callbacks.Timeline(tmp_path / "trace.json", steps=(1, 2)),
    ]
    history = fit(two_replicas, copy.deepcopy(callbacks))
    assert {"learning_rate", "slowest_replica"} <= set(history)
    assert (tmp_path / "trace.json").exists()
    copy.deepcopy(tfdist.callbacks.CompressionMonitor())
