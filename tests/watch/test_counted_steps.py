"""How many steps were made: the last call of an epoch makes fewer where the data end."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.callbacks import RunReport
from tfdist.watch import page, status

X = np.ones((40, 4), "float32")
Y = np.ones((40, 1), "float32")
BATCHES = 5
EPOCHS = 2

pytestmark = pytest.mark.filterwarnings("ignore:.*ran out of data")


def model_of(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **options)
    return model


def known():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(len(X) // BATCHES)


def unknown():
    return known().filter(lambda x, y: True)


DATA = {
    "a known length": (known, {}, BATCHES),
    "an unknown length": (unknown, {}, BATCHES),
    "an end before the epoch's": (unknown, {"steps_per_epoch": 7}, BATCHES),
    # Keras makes whole calls while there are data.
    "more than the epoch's": (lambda: known().repeat(), {"steps_per_epoch": 5}, 6),
}


def counted(model, data, monkeypatch, tmp_path, **options):
    """The steps that a report counts in each epoch."""
    runs = []
    monkeypatch.setattr(page, "write", lambda run, path: runs.append(run))
    callbacks = [RunReport(tmp_path / "report.html")]
    model.fit(data(), epochs=EPOCHS, verbose=0, callbacks=callbacks, **options)
    return [epoch.ranks[0].steps for epoch in runs[-1].epochs]


@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", DATA)
def test_a_report_counts_the_steps_that_were_made(name, replicas, monkeypatch, tmp_path):
    data, options, made = DATA[name]
    model = model_of(tfdist.MirroredStrategy(DEVICES[:replicas]), steps_per_execution=2)
    found = counted(model, data, monkeypatch, tmp_path, **options)
    ended_early = name == "an end before the epoch's"  # so the next epoch goes on, or has no data
    assert found[:1] == [made - 2]
    assert ended_early or found == EPOCHS * [made - 2]


def test_single_steps_are_counted_by_keras_too(monkeypatch, tmp_path, two_replicas):
    found = counted(model_of(two_replicas), unknown, monkeypatch, tmp_path)
    assert found == EPOCHS * [BATCHES - 1]


@pytest.mark.parametrize("name", DATA)
def test_where_steps_cannot_tell_only_whole_calls_count(name, monkeypatch, tmp_path):
    data, options, _ = DATA[name]
    strategy = tfdist.MirroredStrategy(DEVICES[:1])
    model = model_of(strategy, steps_per_execution=2, jit_compile=True)
    assert counted(model, data, monkeypatch, tmp_path, **options)[0] == 2


@pytest.mark.parametrize("name", DATA)
def test_a_launcher_that_watches_is_told_no_more_steps(name, monkeypatch, tmp_path, two_replicas):
    monkeypatch.setenv("TFDIST_WATCH", str(tmp_path))
    monkeypatch.setattr(status, "SECONDS", 0.0)
    told = []
    monkeypatch.setattr(status, "write", lambda folder, statuses: told.append(statuses[0]))
    data, options, made = DATA[name]
    model = model_of(two_replicas, steps_per_execution=2)
    model.fit(data(), verbose=0, **options)
    most = min(made, options.get("steps_per_epoch", made))
    assert [one.step for one in told] == [2, 4, most, most, most]  # also as epoch and fit end
