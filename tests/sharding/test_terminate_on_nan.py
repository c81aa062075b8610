"""Both kinds of TerminateOnNaN, with all kinds of sharding."""

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tfdist import compat
from tfdist.options import SHARDINGS

_BATCH = 8


def _model(sharding, run_eagerly=False, **options):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], sharding=sharding, **options)
    keras.utils.set_random_seed(7)
    with strategy.scope():
        layers = [
            keras.layers.Embedding(10, 6, name="table"),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="tanh", name="hidden"),
            keras.layers.Dense(1, name="out"),
        ]
        model = keras.Sequential([keras.Input((3,), dtype="int32"), *layers], name="net")
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=run_eagerly)
    return model


def _fit(model, callback, bad):
    """The epochs that were trained, with a target that is infinite in sample `bad`."""
    x = np.random.default_rng(0).integers(0, 10, (40, 3))
    y = np.ones((40, 1), "float32")
    if bad is not None:
        y[bad] = np.inf
    options = {"batch_size": _BATCH, "epochs": 3, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=[callback], **options).epoch


def _in_third_step(replica_id):
    """The place of a sample that this replica gets in the third step."""
    return 2 * _BATCH + replica_id * _BATCH // 2


def _finite(model):
    return [bool(np.isfinite(weight).all()) for weight in model.get_weights()]


@pytest.mark.parametrize("replica_id", [0, 1])
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_the_replica_with_the_gradient_is_named(sharding, replica_id):
    model, stop = _model(sharding), tfdist.callbacks.TerminateOnNaN()
    assert len(_fit(model, stop, _in_third_step(replica_id))) == 1
    paths = [variable.path for variable in model.trainable_variables]
    assert sorted(stop.findings) == sorted((3, path, replica_id) for path in paths)
    assert int(model.optimizer.iterations.numpy()) == 3
    assert not any(_finite(model))


def test_gradients_of_micro_batches_are_watched():
    model = _model("parameters", accumulation_steps=4)
    stop = tfdist.callbacks.TerminateOnNaN()
    _fit(model, stop, _in_third_step(1))
    assert {(step, replica_id) for step, _, replica_id in stop.findings} == {(3, 1)}
    assert int(model.optimizer.iterations.numpy()) == 0
    assert all(_finite(model))


def test_eager_steps_are_watched():
    model, stop = _model("parameters", run_eagerly=True), tfdist.callbacks.TerminateOnNaN()
    _fit(model, stop, _in_third_step(1))
    assert {(step, replica_id) for step, _, replica_id in stop.findings} == {(3, 1)}


def test_finite_training_is_left_alone():
    model, stop = _model("parameters"), tfdist.callbacks.TerminateOnNaN()
    assert len(_fit(model, stop, None)) == 3
    assert stop.findings == []
    divided = [variable for variable in model.variables if compat.is_sharded(variable)]
    assert len(divided) == 3
    assert not any(variable.is_watched for variable in divided)


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_that_of_keras_stops_after_the_same_step(sharding):
    model = _model(sharding)
    assert len(_fit(model, keras.callbacks.TerminateOnNaN(), _in_third_step(1))) == 1
    assert int(model.optimizer.iterations.numpy()) == 3
    assert not any(_finite(model))
