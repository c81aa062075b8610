"""What compressors keep survives saving, and is never given to the wrong replica."""

import dataclasses
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import compression

_RANDOM = np.random.default_rng(0)
X, Y = _RANDOM.normal(size=(64, 12)), _RANDOM.normal(size=(64, 3))
CHOICES = {
    "topk": compression.TopK(0.1, min_bytes=0),
    "dgc": compression.DGC(0.1, min_bytes=0),
    "mixed": {
        "a/kernel": compression.PowerSGD(1, min_bytes=0),
        "*kernel": compression.OneBit(min_bytes=0),
        "*": compression.TernGrad(min_bytes=0),
    },
}


def _model(choice, replicas=2, optimizer=lambda: keras.optimizers.SGD(0.1)):
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas], compression=choice)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Dense(20, "relu", name="a"), keras.layers.Dense(3, name="b")]
        model = keras.Sequential([keras.Input((12,)), *layers], name="net")
        model.compile(optimizer=optimizer(), loss="mse")
    return model


def _fit(model, first=0, last=4):
    model.fit(X, Y, 16, epochs=last, initial_epoch=first, shuffle=False, verbose=0)
    return model


def _state(model):
    rows = model.optimizer.compression_state._local_rows()
    assert rows
    return rows


def _assert_same(model, expected):
    for found, wanted in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    rows = _state(model)
    assert rows.keys() == _state(expected).keys()
    for key, wanted in _state(expected).items():
        np.testing.assert_array_equal(rows[key], wanted)


@pytest.fixture(
    params=["mixed", *(pytest.param(n, marks=pytest.mark.full) for n in ("topk", "dgc"))]
)
def choice(request):
    return CHOICES[request.param]


def test_a_resumed_training_equals_an_uninterrupted_one(choice, tmp_path):
    whole = _fit(_model(choice))
    path = tmp_path / "model.keras"
    first = _fit(_model(choice), last=2)
    first.save(path)
    with first.distribute_strategy.scope():
        resumed = keras.models.load_model(path)
    _fit(resumed, first=2)
    _assert_same(resumed, whole)


@pytest.mark.full
def test_a_checkpoint_is_enough(choice, tmp_path):
    whole = _fit(_model(choice))
    first = _fit(_model(choice), last=2)
    backup = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
    interrupted = _model(choice)
    interrupted.fit(X, Y, 16, epochs=2, shuffle=False, verbose=0, callbacks=[backup])
    _assert_same(interrupted, first)
    resumed = _model(choice)
    resumed.fit(X, Y, 16, epochs=4, shuffle=False, verbose=0, callbacks=[backup])
    _assert_same(resumed, whole)


@pytest.mark.full
@pytest.mark.parametrize("replicas", [1, 3])
def test_another_number_of_replicas_shares_equally_what_was_unsent(
    choice, replicas, tmp_path, caplog
):
    tf.get_logger().propagate = True
    saved = _fit(_model(choice), last=1)
    saved.save_weights(tmp_path / "x.weights.h5")
    saved.save(tmp_path / "model.keras")
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas], compression=choice)
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert "saved by 2 replicas" in caplog.text
    assert f"divided equally among {replicas}" in caplog.text
    before, after = _state(saved), _state(loaded)
    assert before.keys() == after.keys()
    for key, rows in after.items():
        if key.startswith("right_"):  # powersgd's, equal on all replicas
            np.testing.assert_array_equal(rows[0], before[key][0])
            continue
        assert len(rows) == replicas
        np.testing.assert_allclose(rows.sum(0), before[key].sum(0), atol=1e-5)
        np.testing.assert_array_equal(rows[0], rows[-1])
    _fit(loaded, first=1, last=2)


@pytest.mark.full
def test_the_bucket_size_may_change(tmp_path):
    choice = CHOICES["topk"]
    saved = _fit(_model(choice), last=1)
    saved.save(tmp_path / "model.keras")
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=choice, bucket_bytes=400)
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert len(loaded.optimizer.compressed.units) > len(saved.optimizer.compressed.units)
    for key, rows in _state(saved).items():
        np.testing.assert_array_equal(_state(loaded)[key], rows)


@pytest.mark.full
def test_another_compressor_drops_what_was_unsent_and_says_so(tmp_path, caplog):
    _fit(_model(CHOICES["dgc"]), last=1).save(tmp_path / "model.keras")
    model = _model(CHOICES["topk"])
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        tf.get_logger().propagate = True
        _load_optimizer(model, tmp_path / "model.keras")
    assert "what these had left unsent is dropped" in caplog.text
    assert not any(rows.any() for rows in _state(model).values())
    _fit(model, last=1)


@pytest.mark.full
def test_another_compressor_with_the_same_state_sends_what_was_unsent(tmp_path):
    saved = _fit(_model(CHOICES["topk"]), last=1)
    saved.save(tmp_path / "model.keras")
    model = _model(compression.SignSGD(scale="bucket", min_bytes=0))
    _load_optimizer(model, tmp_path / "model.keras")
    for key, rows in _state(saved).items():
        np.testing.assert_array_equal(_state(model)[key], rows)


@pytest.mark.full
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("saved", ["none", "another"])
def test_loading_leaves_nothing_of_the_state_before(trained, saved, tmp_path):
    other = _fit(_model(None if saved == "none" else CHOICES["mixed"]), last=1)
    other.save(tmp_path / "model.keras")
    for choice in (CHOICES["topk"], compression.PowerSGD(1, min_bytes=0)):
        model = _fit(_model(choice), last=1) if trained else _model(choice)
        _load_optimizer(model, tmp_path / "model.keras")
        for found, wanted in zip(model.get_weights(), other.get_weights()):
            np.testing.assert_array_equal(found, wanted)
        fresh = _model(choice)
        with fresh.distribute_strategy.scope():
            fresh.optimizer.build(fresh.trainable_variables)
        for key, rows in _state(fresh).items():
            np.testing.assert_array_equal(_state(model)[key], rows)


def test_plain_keras_reads_a_model_saved_with_compression(tmp_path):
    saved = _fit(_model(CHOICES["topk"]), last=1)
    saved.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    for found, wanted in zip(loaded.get_weights(), saved.get_weights()):
        np.testing.assert_array_equal(found, wanted)


def test_a_tf_checkpoint_keeps_the_sum(tmp_path):
    saved = _fit(_model(CHOICES["topk"]), last=1)
    path = tf.train.Checkpoint(model=saved, optimizer=saved.optimizer).save(str(tmp_path / "x"))
    model = _model(CHOICES["topk"])
    model.optimizer.build(model.trainable_variables)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path).expect_partial()
    for key, rows in _state(saved).items():
        np.testing.assert_allclose(_state(model)[key].sum(0), rows.sum(0), atol=1e-6)


@compression.register
@dataclasses.dataclass(frozen=True)
class Counting(compression.FP16):
    """Counts its steps in a scalar, with a name that PowerSGD gives to what replicas share."""

    name = "counting"

    def init(self, spec):
        return {"right": tf.constant(0.0)}

    def encode(self, gradient, state, step):
        payload, _ = super().encode(gradient, state, step)
        return payload, {"right": state["right"] + 1.0}


@pytest.mark.full
def test_a_state_may_be_a_scalar_and_have_the_name_of_another_ones(tmp_path):
    choice = {"a/kernel": Counting(min_bytes=0), "*": compression.PowerSGD(1, min_bytes=0)}
    saved = _fit(_model(choice), last=1)
    assert _state(saved)["right_0"].tolist() == [4.0, 4.0]
    saved.save(tmp_path / "model.keras")
    with saved.distribute_strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    _assert_same(loaded, saved)


def _load_optimizer(model, path):
    """As BackupAndRestore: weights and optimizer state of a model that was compiled otherwise."""
    with model.distribute_strategy.scope():
        model.optimizer.build(model.trainable_variables)
    model.load_weights(path)
