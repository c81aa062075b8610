"""What `fit` says of memory and of Keras' distributions, before it begins."""

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


def model_in(strategy, optimizer=keras.optimizers.Adam):
    with strategy.scope():
        dense = keras.layers.Dense(WIDTH, use_bias=False)
        model = keras.Sequential([keras.Input((WIDTH,)), dense])
        model.compile(optimizer(0.1), "mse")
    return model


def place(free, replicas=1, on_host=1, **options):
    return at_start.Place(Options(**options), replicas, on_host, free)


def said(free, *, built=False, **options):
    model = model_in(tf.distribute.get_strategy())
    if built:
        model.optimizer.build(model.trainable_variables)
    return at_start.what_does_not_fit(model, place(free, **options))


def test_gradients_and_slots_that_do_not_exist_yet_must_fit():
    assert said(9 * WEIGHTS) is None
    assert said(3.1 * WEIGHTS) is None
    assert "do not fit the memory of this host: 1 replica needs 3.1 MB more" in said(2 * WEIGHTS)


def test_slots_that_exist_need_no_more_memory():
    assert said(1.1 * WEIGHTS, built=True) is None
    assert "do not fit" in said(0.9 * WEIGHTS, built=True)


def test_replicas_of_a_host_share_its_memory():
    options = {"replicas": 4, "built": True}
    assert said(2.1 * WEIGHTS, **options) is None
    assert "2 replicas need" in said(3 * WEIGHTS, on_host=2, **options)


def test_the_first_sharding_that_fits_is_named():
    options = {"replicas": 4, "on_host": 4}
    text = said(9 * WEIGHTS, **options)  # 4 x (1 + 2 + 1) without, 4 x (1 + 0.5 + 0.25) with
    assert 'Try `sharding="optimizer"`, with which they fit. Received' in text
    assert "Try a machine with more memory. " in said(4 * WEIGHTS, **options)
    assert "Try a machine" in said(4 * WEIGHTS, sharding="optimizer", **options)
    options["accumulation_steps"] = 4  # 4 x 2.75 with "optimizer", 4 x 2 with "gradients"
    assert '`sharding="gradients"`' in said(9 * WEIGHTS, **options)


def test_the_gradient_of_an_embedding_has_few_rows():
    table = keras.layers.Embedding(WIDTH, WIDTH)
    model = keras.Sequential([keras.Input((1,), dtype="int32"), table, keras.layers.Flatten()])
    model.compile("sgd", "mse")
    assert at_start.what_does_not_fit(model, place(0.5 * WEIGHTS)) is None
    model.compile("adam", "mse")  # whose slots are whole
    assert "do not fit" in at_start.what_does_not_fit(model, place(1.5 * WEIGHTS))


def test_what_a_launcher_says_is_not_asked_of_one_process():
    wrong = {"HOROVOD_RANK": "nonsense", "HOROVOD_SIZE": "2"}
    found = at_start.place_of(tfdist.MirroredStrategy(DEVICES[:2]), wrong)
    assert (found.replicas, found.on_host) == (2, 2)


def warnings_of_fit(strategy, free, monkeypatch, optimizer=keras.optimizers.Adam):
    monkeypatch.setattr(at_start, "free_memory", lambda: free)
    model = model_in(strategy, optimizer)
    x = np.ones((8, WIDTH))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(x, x, verbose=0)
    return [str(warning.message) for warning in caught]


def test_fit_warns_and_trains(monkeypatch):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    text = "The gradients and the optimizer's state do not fit"
    assert not [t for t in warnings_of_fit(strategy, 100 * WEIGHTS, monkeypatch) if text in t]
    assert len([t for t in warnings_of_fit(strategy, WEIGHTS, monkeypatch) if text in t]) == 1
    assert not [t for t in warnings_of_fit(strategy, None, monkeypatch) if text in t]


def test_what_is_large_enough_is_not_looked_into(monkeypatch):
    monkeypatch.setattr(at_start, "slot_bytes", lambda _: pytest.fail("made an optimizer"))
    assert said(100 * WEIGHTS) is None


class NoCopy(keras.optimizers.SGD):
    @classmethod
    def from_config(cls, config, custom_objects=None):
        raise NotImplementedError("none of\nthese")


def test_an_optimizer_that_cannot_be_copied_stops_nothing(monkeypatch):
    strategy = tfdist.MirroredStrategy(DEVICES[:2])
    found = warnings_of_fit(strategy, 1, monkeypatch, NoCopy)
    (text,) = [t for t in found if "fits the memory is not known" in t]
    assert text.endswith("Received: NoCopy, which raises NotImplementedError: none of these")


def test_keras_own_distributions_are_idle():
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.warns(UserWarning, match="does nothing with TensorFlow.*DataParallel"):
            model.fit(np.ones((4, 1)), np.ones((4, 1)), verbose=0)
    finally:
        keras.distribution.set_distribution(None)
