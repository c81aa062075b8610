"""RunReport where a run is not the usual one: resumed, repeated, empty, or with its own names."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.log_messages import log_messages
from tfdist.callbacks import RunReport

X = np.ones((32, 4), "float32")
Y = np.ones((32, 1), "float32")


def model_of(strategy, **options):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **options)
    return model


class Fails(keras.callbacks.Callback):
    """Raises in this epoch, counted from 0."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise RuntimeError("no more")


def fit(model, callbacks, **options):
    return model.fit(X, Y, batch_size=8, verbose=0, callbacks=callbacks, **options).history


def test_a_resumed_run_counts_all_epochs(two_replicas, tmp_path):
    path = tmp_path / "report.html"
    with pytest.raises(RuntimeError, match="no more"):
        fit(model_of(two_replicas), [RunReport(path), Fails(11)], epochs=12, initial_epoch=10)
    assert "Epoch 11 of 12 is done." in path.read_text()


def test_a_second_fit_says_that_there_was_a_first_one(two_replicas, tmp_path):
    path = tmp_path / "report.html"
    model, callbacks = model_of(two_replicas), [RunReport(path)]
    fit(model, callbacks)
    assert "has seen" not in path.read_text()
    fit(model, callbacks)
    assert "the callback has seen a `fit` before" in path.read_text()


def test_no_epochs_are_no_first_epoch(two_replicas, tmp_path):
    path = tmp_path / "report.html"
    fit(model_of(two_replicas), [RunReport(path)], epochs=0)
    text = path.read_text()
    assert "There was no epoch." in text and "has not ended" not in text


def test_metrics_with_names_of_ours_keep_their_values(two_replicas, tmp_path):
    path = tmp_path / "report.html"
    names = ("step_seconds", "waiting", "dropped")
    metrics = [keras.metrics.MeanAbsoluteError(name=name) for name in ("usual", *names)]

    class Own(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["compute_seconds"] = -1.0

    callbacks = [Own(), RunReport(path)]
    history = fit(model_of(two_replicas, metrics=metrics), callbacks, epochs=2)
    for name in names:
        assert history[name] == history["usual"]
    assert history["compute_seconds"] == [-1.0, -1.0]
    assert "exchange_seconds" in history
    section = path.read_text().partition("Loss and metrics")[2].partition("<section>")[0]
    for name in ("loss", "usual", *names):
        assert f"<figcaption>{name}</figcaption>" in section
    assert "exchange_seconds" not in section


def test_a_folder_that_cannot_be_made_is_refused_before_training(two_replicas, tmp_path):
    (tmp_path / "file").touch()
    model = model_of(two_replicas)
    before = model.get_weights()
    expected = (
        "The folder for TensorBoard must be one that can be made and written: /[^{}]*file is not a "
        r"directory\. Received: log_dir='.*file'"
    )
    with pytest.raises(ValueError, match=expected):
        fit(model, two_replicas.callbacks(log_dir=tmp_path / "file"))
    assert all((a == b).all() for a, b in zip(before, model.get_weights()))
    assert two_replicas.parts is None


def test_a_folder_that_is_full_later_is_warned_of(two_replicas, tmp_path, monkeypatch):
    def full(*_, **__):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    callbacks = two_replicas.callbacks(log_dir=tmp_path)
    monkeypatch.setattr(tf.summary, "scalar", full)
    with log_messages() as messages:
        history = fit(model_of(two_replicas), callbacks, epochs=2)
    assert len(history["loss"]) == 2
    assert len([text for text in messages if text.endswith(": No space left on device")]) == 2
