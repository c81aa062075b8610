"""Batches in which something is None, such as the targets of an output without a loss."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
STRATEGIES = {
    "one device": lambda: tfdist.MirroredStrategy(DEVICES[:1]),
    "two devices": lambda: tfdist.MirroredStrategy(DEVICES[:2]),
    "three devices": lambda: tfdist.MirroredStrategy(DEVICES[:3]),
    "balanced": lambda: tfdist.MirroredStrategy(DEVICES[:2], balance=True),
    "another class": tfdist.MultiWorkerMirroredStrategy,
}


def generated():
    for rows in (slice(0, 4), slice(4, 8), slice(8, 10)):
        yield X[rows], (Y[rows], None)


def data_set():
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    return data.map(lambda x, y: (x, (y, None)))


KINDS = {
    "arrays": lambda: {"x": X, "y": (Y, None), "batch_size": 4},
    "generator": lambda: {"x": generated()},
    "data set": lambda: {"x": data_set()},
    "data set without weights": lambda: {"x": data_set().map(lambda x, y: (x, y, None))},
    "endless": lambda: {"x": data_set().repeat(), "steps_per_epoch": 5},
}


def results(strategy, kind, **options):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(4, activation="tanh")(inputs)
        model = keras.Model(inputs, [keras.layers.Dense(1)(hidden), hidden])
        model.compile(keras.optimizers.SGD(0.1), loss=["mse", None], **options)
    history = model.fit(**KINDS[kind](), shuffle=False, verbose=0).history
    predicted = model.predict(data_set(), verbose=0)
    evaluated = model.evaluate(data_set(), verbose=0, return_dict=True)
    return [*model.get_weights(), history["loss"], evaluated["loss"], *predicted]


@pytest.mark.filterwarnings("ignore:.*ran out of data")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("two devices", {}),
        pytest.param("one device", {}, marks=pytest.mark.full),
        pytest.param("two devices", {"steps_per_execution": 2}, marks=pytest.mark.full),
        pytest.param("two devices", {"run_eagerly": True}, marks=pytest.mark.full),
        pytest.param("three devices", {}, marks=pytest.mark.full),
        pytest.param("balanced", {}, marks=pytest.mark.full),
        pytest.param("another class", {}, marks=pytest.mark.full),
    ],
)
def test_what_is_none_is_none_in_all_replicas(strategy, options, kind):
    expected = results(tf.distribute.get_strategy(), kind, **options)
    found = results(STRATEGIES[strategy](), kind, **options)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_step_of_ones_own_gets_none(two_replicas):
    seen = []

    class Model(keras.Sequential):
        def train_step(self, data):
            x, (y, nothing) = data
            seen.append(nothing)
            return super().train_step((x, y))

    with two_replicas.scope():
        model = Model([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(data_set(), verbose=0)
    assert seen and set(seen) == {None}
