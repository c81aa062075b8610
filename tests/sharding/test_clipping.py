"""Clipping of gradients in parts, dense and sparse: equal to one device."""

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES

_X = np.random.default_rng(2).integers(0, 7, (20, 4))
_Y = np.random.default_rng(1).normal(size=(20, 3)).astype("float32")
_CLIPS = [{"clipnorm": 0.05}, {"global_clipnorm": 0.1}, {"clipvalue": 0.01}, {}]


def _trained(strategy, settings):
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [
            keras.layers.Embedding(7, 5),  # words that come twice
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(3),
        ]
        model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers])
        model.compile(keras.optimizers.Adam(1e-2, **settings), "mse")
    model.fit(_X, _Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("settings", _CLIPS, ids=str)
def test_clipped_parts_equal_one_device(settings):
    expected = _trained(tfdist.MirroredStrategy(DEVICES[:1]), settings)
    found = _trained(tfdist.MirroredStrategy(DEVICES[:3], sharding="optimizer"), settings)
    plain = _trained(tfdist.MirroredStrategy(DEVICES[:3], sharding="optimizer"), {})
    for one, other, unclipped in zip(found, expected, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
        if settings:
            assert np.abs(one - unclipped).max() > 1e-5  # it is clipped at all
