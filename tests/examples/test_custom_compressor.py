"""The compressor of the example keeps what docs/compression.md asks of one."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from examples import custom_compressor
from tests.compression.replicas import exchange, shaped, spec_of
from tests.devices import DEVICES
from tests.examples.test_scripts import printed, run
from tfdist import compression

VARIANTS = [custom_compressor.Int4(), custom_compressor.Int4(levels=1)]
every_variant = pytest.mark.parametrize("compressor", VARIANTS, ids=["7 levels", "1 level"])


def _gradient(compressor, seed, scale=1.0, shape=(23, 17)):
    return shaped(compressor, scale * np.random.default_rng(seed).normal(size=shape))


@pytest.mark.full
def test_script_trains_with_a_sixth_of_the_bytes(tmp_path):
    result = run("custom_compressor.py", cwd=tmp_path)
    # Both kernels are compressed, 1600 elements with a scale; 69 biases are below min_bytes.
    bytes_ = 800 + 4 + 4 * 69
    assert printed(r"ratio: ([\d.]+)", result) == pytest.approx(4 * 1669 / bytes_, abs=0.01)
    first = printed(r"loss: ([\d.]+) to", result)
    assert printed(r"loss: [\d.]+ to ([\d.]+)", result) < 0.6 * first


@every_variant
@pytest.mark.parametrize("shape", [(1, 1), (23, 17), (40, 30)])
def test_the_payload_has_the_stated_size_and_all_replicas_get_the_same_sum(compressor, shape):
    gradients = [_gradient(compressor, seed, shape=shape) for seed in range(3)]
    results, sent = exchange(compressor, gradients)
    assert sent == compressor.wire_bytes(spec_of(gradients[0]))
    total = tf.add_n([result.own for result in results])
    for result in results:
        np.testing.assert_array_equal(result.total, results[0].total)
        assert result.total.shape == gradients[0].shape
    np.testing.assert_allclose(results[0].total, total, atol=1e-5)


@every_variant
@pytest.mark.parametrize("scale", [0.0, 1e30, 1e-30, 1e-40])
def test_huge_and_tiny_values_stay_finite(compressor, scale):
    gradient = _gradient(compressor, 1, scale)
    results, _ = exchange(compressor, [gradient, -2.0 * gradient])
    for result in results:
        assert np.isfinite(result.total).all() and np.isfinite(result.own).all()


@every_variant
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 200, -1])
def test_what_is_no_number_arrives_at_all_replicas(compressor, value, place):
    broken = _gradient(compressor, 2).numpy()
    broken.flat[place] = value
    results, _ = exchange(compressor, [_gradient(compressor, 3), tf.constant(broken)])
    for result in results:
        assert np.isnan(result.total).all()


def test_nothing_is_further_from_its_multiple_than_half_a_step():
    compressor = custom_compressor.Int4()
    gradient = _gradient(compressor, 4)
    (result,), _ = exchange(compressor, [gradient])
    step = np.abs(gradient).max() / 7
    assert np.abs(result.own - gradient).max() <= 0.5001 * step


def test_it_is_known_by_its_name_and_saved_with_the_model(tmp_path):
    assert compression.get("int4", levels=3) == custom_compressor.Int4(3)
    strategy = tfdist.MirroredStrategy(DEVICES[:2], compression={"*kernel": "int4", "*": None})
    with strategy.scope():
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 20)), np.ones((8, 30)), verbose=0)
    model.save(tmp_path / "model.keras")
    with strategy.scope():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
    saved, read = (m.optimizer.compression_state._local_rows() for m in (model, loaded))
    assert saved.keys() == read.keys() == {"residual_0"}
    np.testing.assert_array_equal(read["residual_0"], saved["residual_0"])
    assert saved["residual_0"].any()
