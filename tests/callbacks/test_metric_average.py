"""MetricAverage in one process; see test_ranks for several."""

import types

import keras
import numpy as np
import pytest

from tfdist.callbacks import MetricAverage
from tfdist.engines.processes import Processes

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


class _Write(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["mine"], logs["text"] = epoch + 0.5, "text"


def _history(model):
    return model.fit(X, Y, epochs=2, verbose=0, callbacks=[_Write(), MetricAverage()]).history


def test_one_process_keeps_its_logs(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    history = _history(model)
    assert history["mine"] == [0.5, 1.5] and history["text"] == ["text"] * 2


def test_plain_keras_is_left_alone():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert _history(model)["mine"] == [0.5, 1.5]


class _SameEverywhere(Processes):
    """Three processes that all have what this one has."""

    def __init__(self):
        super().__init__(rank=0, size=3)

    @property
    def aside(self):
        return self

    def _sum(self, value):
        return 3 * value

    def all_gather_texts(self, text):
        return [text] * 3


@pytest.fixture
def callback():
    strategy = types.SimpleNamespace(processes=_SameEverywhere())
    callback = MetricAverage()
    callback.set_model(types.SimpleNamespace(distribute_strategy=strategy))
    return callback


def test_logs_that_are_equal_are_not_touched(callback):
    """The mean of three times 0.1 is another number, and one of a float32 another type."""
    logs = {"a": 0.1, "b": np.float32(0.3), "c": 5, "d": float("nan"), "e": np.array([1, 2])}
    before = dict(logs)
    callback.on_epoch_end(0, logs)
    assert list(logs) == list(before)
    assert all(logs[name] is before[name] for name in logs)


def test_logs_may_be_missing(callback):
    callback.on_epoch_end(0, None)
