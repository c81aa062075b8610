"""CompressionMonitor: right numbers in the logs, and a warning where training suffers."""

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist import compression

_RANDOM = np.random.default_rng(0)
X, Y = _RANDOM.normal(size=(64, 20)), _RANDOM.normal(size=(64, 1))


def _fit(choice, epochs=1, replicas=2, layers=1, **options):
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas], compression=choice)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        hidden = [keras.layers.Dense(20, use_bias=False) for _ in range(layers - 1)]
        last = keras.layers.Dense(1, use_bias=False)
        model = keras.Sequential([keras.Input((20,)), *hidden, last])
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    monitor = tfdist.callbacks.CompressionMonitor(**options)
    history = model.fit(
        X, Y, 64, epochs=epochs, shuffle=False, verbose=0, callbacks=[monitor]
    ).history
    return {name.removeprefix("compression_"): v for name, v in history.items()}


def test_the_numbers_are_those_of_the_gradient():
    found = _fit(compression.TopK(0.1, min_bytes=0), replicas=1)
    keras.utils.set_random_seed(3)
    weights = keras.layers.Dense(1, use_bias=False)
    weights.build((None, 20))
    error = X @ weights.get_weights()[0] - Y
    gradient = (2 * X.T @ error / 64).ravel()
    sent = np.where(np.abs(gradient) >= np.sort(np.abs(gradient))[-2], gradient, 0)
    norm = np.linalg.norm(gradient)
    np.testing.assert_allclose(found["residual"], np.linalg.norm(gradient - sent) / norm, rtol=1e-4)
    np.testing.assert_allclose(found["cosine"], np.linalg.norm(sent) / norm, rtol=1e-4)
    spec = tf.TensorSpec([20], tf.float32)
    assert found["ratio"] == [80 / compression.TopK(0.1).wire_bytes(spec)]


def test_the_ratio_counts_what_travels_uncompressed():
    found = _fit({"dense/*": compression.Int8(min_bytes=0), "*": None}, layers=2)
    assert found["ratio"] == [(1600 + 80) / (404 + 80)]


def test_the_ratio_counts_sparse_gradients_as_they_are():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression=compression.Int8(min_bytes=0))
    with strategy.scope():
        layers = [keras.layers.Embedding(50, 8), keras.layers.Flatten(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    monitor = tfdist.callbacks.CompressionMonitor()
    history = model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, callbacks=[monitor]).history
    assert history["compression_ratio"] == [(1600 + 33 * 4) / (1600 + 33 + 4)]


@pytest.mark.full
def test_a_residual_that_grows_is_seen():
    found = _fit(compression.SignSGD(min_bytes=0), epochs=5)
    assert found["residual"][-1] > found["residual"][0] > 0
    without = _fit(compression.SignSGD(min_bytes=0, error_feedback=False), epochs=5)
    assert without["residual"][-1] < 1.0


def test_dgc_counts_what_it_keeps():
    found = _fit(compression.DGC(0.1, min_bytes=0), epochs=3)
    assert found["residual"][-1] > 1.0


@pytest.mark.parametrize(
    "option", [{"max_residual": 0.1}, pytest.param({"min_cosine": 0.999}, marks=pytest.mark.full)]
)
def test_little_is_warned_of_once(option, caplog):
    tf.get_logger().propagate = True
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        _fit(compression.TopK(0.1, min_bytes=0), epochs=3, **option)
    assert caplog.text.count("compression leaves little of the gradients") == 1


@pytest.mark.full
def test_random_elements_with_much_momentum_are_warned_of(caplog):
    tf.get_logger().propagate = True
    with caplog.at_level(logging.WARNING, logger="tensorflow"):
        _fit(compression.TopK(0.9, min_bytes=0), epochs=2)
        assert "tfdist" not in caplog.text
        _fit(compression.RandomK(0.002, min_bytes=0), epochs=2, layers=3)
    assert "Training may not converge" in caplog.text


@pytest.mark.parametrize("option", [{"max_residual": "much"}, {"min_cosine": -0.1}])
def test_limits_are_checked(option):
    with pytest.raises(ValueError, match="must be a number >= 0. Received: "):
        tfdist.callbacks.CompressionMonitor(**option)


def test_a_model_without_compression_is_refused():
    with pytest.raises(ValueError, match="needs a model whose gradients are compressed.*Received"):
        _fit(None)
