"""What `fit` says of memory and of Keras' distributions, before it begins."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.memory import at_start
from tfdist.options import Options

WIDTH = 512
WEIGHTS = 4 * WIDTH * WIDTH


def model_in(strategy):
    with strategy.scope():
        dense = keras.layers.Dense(WIDTH, use_bias=False)
        model = keras.Sequential([keras.Input((WIDTH,)), dense])
        model.compile("adam", "mse")
    return model


def place(free, replicas=1, on_host=1, **options):
    return at_start.Place(Options(**options), replicas, on_host, free)


def said(free, *, batch=None, built=False, **options):
    model = model_in(tf.distribute.get_strategy())
    if built:
        model.optimizer.build(model.trainable_variables)
    return at_start.what_does_not_fit(model, batch, place(free, **options))


def test_gradients_and_slots_that_do_not_exist_yet_must_fit():
    assert said(9 * WEIGHTS) is None
    assert said(4 * WEIGHTS) is None
    assert "may not fit" in said(3.5 * WEIGHTS)
    assert "do not fit the memory of this host: 1 replica needs 3.1 MB more" in said(2 * WEIGHTS)


def test_slots_that_exist_need_no_more_memory():
    assert said(1.3 * WEIGHTS, built=True) is None
    assert "do not fit" in said(0.9 * WEIGHTS, built=True)


def test_replicas_of_a_host_share_its_memory():
    options = {"replicas": 4, "built": True}
    assert said(2.6 * WEIGHTS, **options) is None
    assert "2 replicas need" in said(3 * WEIGHTS, on_host=2, **options)


def test_the_first_sharding_that_fits_is_named():
    options = {"replicas": 4, "on_host": 4}
    text = said(11 * WEIGHTS, **options)  # 4 x (1 + 2 + 1) without, 4 x (1 + 0.5 + 0.25) with
    assert 'Try a smaller batch or `sharding="optimizer"`, with which they fit' in text
    assert "sharding" not in said(4 * WEIGHTS, **options)
    assert "Try a smaller batch. " in said(4 * WEIGHTS, sharding="optimizer", **options)
    options["accumulation_steps"] = 4  # 4 x 2.75 with "optimizer", 4 x 2 with "gradients"
    assert '`sharding="gradients"`' in said(11 * WEIGHTS, **options)


def test_activations_count_where_the_batch_is_known():
    batch = tf.TensorSpec((20_000, WIDTH))
    activations = 4 * WIDTH * 20_000
    assert "do not fit" in said(2 * activations, batch=batch)
    assert said(2 * activations) is None
    text = said(activations, batch=batch, replicas=2)
    (size,) = re.findall(r"activations ([\d.]+) MB", text)
    assert 0.5 * activations < 1e6 * float(size) < 2 * activations


def test_a_small_step_is_not_traced(monkeypatch):
    monkeypatch.setattr(at_start, "trace", lambda *_: pytest.fail("traced"))
    assert said(2 * 10**9, batch=tf.TensorSpec((64, WIDTH))) is None


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"x": np.ones((100, 3)), "batch_size": 8}, [(8, 3)]),
        ({"x": np.ones((100, 3))}, [(32, 3)]),
        ({"x": np.ones((5, 3))}, [(5, 3)]),
        ({"x": [np.ones((9, 3)), np.ones((9, 2))], "batch_size": 4}, [(4, 3), (4, 2)]),
        ({"x": {"b": np.ones((9, 3)), "a": tf.ones((9, 2))}}, [(9, 2), (9, 3)]),
        ({"x": tf.data.Dataset.from_tensors((tf.ones((6, 2)), tf.ones(6)))}, [(6, 2)]),
        ({"x": tf.data.Dataset.from_tensors(tf.ones((6, 2)))}, [(6, 2)]),
        ({"x": tf.data.Dataset.range(9).batch(4)}, None),
        ({"x": iter([])}, None),
        ({"x": None}, None),
        ({}, None),
    ],
)
def test_the_sizes_of_a_batch_come_from_the_arguments_of_fit(arguments, sizes):
    found = at_start.batch_of(arguments)
    flat = None if found is None else [tuple(spec.shape) for spec in tf.nest.flatten(found)]
    assert flat == sizes


def warnings_of_fit(strategy, free, monkeypatch):
    monkeypatch.setattr(at_start, "free_memory", lambda: free)
    model = model_in(strategy)
    x = np.ones((8, WIDTH))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, x, verbose=0)
    return [str(warning.message) for warning in caught]


def test_fit_warns_and_trains(monkeypatch):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    assert not [t for t in warnings_of_fit(strategy, 100 * WEIGHTS, monkeypatch) if "memory" in t]
    found = warnings_of_fit(strategy, 3 * WEIGHTS, monkeypatch)
    assert len([t for t in found if t.startswith("The tensors of a training step do not fit")]) == 1
    assert not [t for t in warnings_of_fit(strategy, None, monkeypatch) if "memory" in t]


def test_a_layer_that_cannot_be_traced_stops_nothing(monkeypatch):
    def failing(*_):
        raise TypeError("no such layer")

    monkeypatch.setattr(at_start, "what_does_not_fit", failing)
    found = warnings_of_fit(tfdist.MirroredStrategy(DEVICES[:2]), 1, monkeypatch)
    assert [t for t in found if "could not be found out. Received: TypeError: no such layer" in t]


def test_keras_own_distributions_are_idle():
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.warns(UserWarning, match="does nothing with TensorFlow.*DataParallel"):
            model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
    finally:
        keras.distribution.set_distribution(None)
