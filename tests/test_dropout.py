"""Random layers: replicas draw different numbers, reproducibly, and replica 0 one device's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

_KNUTH = 0x9E3779B9


class _Given(keras.random.SeedGenerator):
    """Draws the seed that it was made with."""

    def __init__(self, seed):
        self._seed = seed

    def next(self, ordered=True):
        return self._seed


class PartwiseDropout(keras.layers.Dropout):
    """On one device: drops each part of the batch with the numbers of the replica it stands for."""

    parts = 1

    def call(self, inputs, training=False):
        if not training:
            return inputs
        seed = self.seed_generator.next()
        length = -(-tf.shape(inputs)[0] // self.parts)
        kept = []
        for part in range(self.parts):
            mine = inputs[part * length : (part + 1) * length]
            own = seed + tf.constant([part * _KNUTH, 0], seed.dtype)
            kept.append(keras.random.dropout(mine, self.rate, seed=_Given(own)))
        return tf.concat(kept, axis=0)


def _model(layer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16), layer(0.5, seed=3), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def _train(model):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 8)), random.normal(size=(64, 1))
    model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("replicas", [1, 2, pytest.param(4, marks=pytest.mark.full)])
def test_equals_one_device_that_drops_each_part_alike(replicas, monkeypatch):
    monkeypatch.setattr(PartwiseDropout, "parts", replicas)
    expected = _train(_model(PartwiseDropout))
    with tfdist.MirroredStrategy(DEVICES[:replicas]).scope():
        model = _model(keras.layers.Dropout)
    for ours, theirs in zip(_train(model), expected):
        np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


def test_one_replica_equals_keras():
    expected = _train(_model(keras.layers.Dropout))
    with tfdist.MirroredStrategy(DEVICES[:1]).scope():
        model = _model(keras.layers.Dropout)
    for ours, theirs in zip(_train(model), expected):
        np.testing.assert_array_equal(ours, theirs)


def test_masks_differ_between_replicas_and_repeat_between_runs(two_replicas):
    def draw():
        with two_replicas.scope():
            generator = keras.random.SeedGenerator(5)

        @tf.function
        def numbers():
            return two_replicas.run(lambda: keras.random.uniform((100,), seed=generator))

        parts = two_replicas.experimental_local_results(numbers())
        states = two_replicas.experimental_local_results(generator.state.value)
        np.testing.assert_array_equal(states[0].numpy(), states[1].numpy())
        return [part.numpy() for part in parts]

    first, second = draw(), draw()
    assert np.abs(np.corrcoef(first[0], first[1])[0, 1]) < 0.3
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first, second)
