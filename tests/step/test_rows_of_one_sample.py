"""Rows of a table that are the same for all samples, where a replica's part is one sample."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests import static_batches
from tests.devices import DEVICES
from tests.step.looked_up import Table

_RANDOM = np.random.default_rng(0)
X = _RANDOM.integers(0, 5, (6, 4)).astype("int32")
Y = _RANDOM.normal(size=(6, 1)).astype("float32")
ROWS = {
    "for each sample": lambda x: keras.ops.zeros((keras.ops.shape(x)[0], 1), "int32"),
    "for all samples": lambda x: tf.zeros([1, 4], tf.int32),
    "positions": lambda x: tf.range(4),
}


def _trained(strategy, rows, batch, way):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input([4], dtype="int32")
        pooled = keras.layers.GlobalAveragePooling1D()(Table(rows)(inputs))
        model = keras.Model(inputs, keras.layers.Dense(1)(pooled))
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return static_batches.train(model, X, Y, batch, way)


@pytest.mark.parametrize(
    ("name", "replicas", "batch", "way"),
    [
        ("for each sample", 2, 2, "fit"),
        ("for all samples", 2, 2, "fit"),
        ("for all samples", 2, 3, "batches"),
        pytest.param("for each sample", 2, 3, "batches", marks=pytest.mark.full),
        pytest.param("for each sample", 2, 5, "batches", marks=pytest.mark.full),
        pytest.param("for all samples", 3, 3, "fit", marks=pytest.mark.full),
        pytest.param("positions", 2, 3, "batches", marks=pytest.mark.full),
    ],
)
def test_rows_count_as_often_as_on_one_device(name, replicas, batch, way):
    expected = _trained(tf.distribute.get_strategy(), ROWS[name], batch, way)
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas])
    for our, their in zip(_trained(strategy, ROWS[name], batch, way), expected, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6)
