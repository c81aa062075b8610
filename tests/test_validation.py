"""Bad input: one clear error before training starts, with what was received and what is allowed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.ones((8, 2), "float32")
Y = np.ones((8, 1), "float32")


def _layers():
    return [keras.Input((2,)), keras.layers.Dense(1)]


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "2", None])
def test_accumulation_steps_must_be_a_positive_integer(value):
    with pytest.raises(ValueError, match=rf"accumulation_steps.*integer >= 1.*Received.*{value}"):
        tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=value)


@pytest.mark.parametrize("value", [0, -4, 2.5, False])
def test_bucket_bytes_must_be_a_positive_integer(value):
    with pytest.raises(ValueError, match=r"bucket_bytes.*integer >= 1.*Received"):
        tfdist.MirroredStrategy(DEVICES[:2], bucket_bytes=value)


@pytest.mark.parametrize("accumulation_steps", [1, 4])
def test_keras_own_accumulation_is_refused(accumulation_steps):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=accumulation_steps)
    with strategy.scope():
        model = keras.Sequential(_layers())
        with pytest.raises(ValueError, match="pass `accumulation_steps=3` to the strategy"):
            model.compile(keras.optimizers.SGD(gradient_accumulation_steps=3), "mse")


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (["CPU:0", "CPU:9"], "no device 'CPU:9'.*Available"),
        (["GPU:0"], "no device 'GPU:0'"),
        (["CPU:1", "CPU:1"], "once only"),
        (["CPU:1", "/device:CPU:1"], "once only"),
        ([], "list of device names"),
        ("CPU:0", "list of device names"),
        ([0, 1], "list of device names"),
    ],
)
def test_devices_are_checked(devices, message):
    with pytest.raises(ValueError, match=rf"(?s){message}.*Received"):
        tfdist.MirroredStrategy(devices)


@pytest.mark.parametrize("name", ["CPU:1", "/CPU:1", "/cpu:1", "/device:CPU:1", "cpu:1"])
def test_usual_spellings_of_a_device_are_accepted(name):
    assert tfdist.MirroredStrategy([name]).num_replicas_in_sync == 1


def test_model_built_outside_the_scope_is_refused_by_compile(two_replicas):
    model = keras.Sequential(_layers())
    with two_replicas.scope(), pytest.raises(ValueError, match="outside the scope.*Received"):
        model.compile("sgd", "mse")


def test_model_built_outside_the_scope_is_refused_by_the_callbacks(two_replicas):
    model = keras.Sequential(_layers())
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="would not be distributed.*Received"):
        model.fit(X, Y, verbose=0, callbacks=two_replicas.callbacks())


def test_model_built_outside_and_fitted_inside_the_scope_is_refused(two_replicas):
    model = keras.Sequential(_layers())
    model.compile("sgd", "mse")
    with two_replicas.scope(), pytest.raises(ValueError, match="not built in the scope.*Received"):
        model.fit(X, Y, verbose=0)


def test_layers_built_outside_the_scope_are_refused(two_replicas):
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    with two_replicas.scope():
        model = keras.Sequential([keras.Input((2,)), layer])
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="not built in the scope.*kernel.*Received"):
        model.fit(X, Y, verbose=0)


def test_optimizer_made_outside_the_scope_is_refused(two_replicas):
    optimizer = keras.optimizers.SGD()
    with two_replicas.scope():
        model = keras.Sequential(_layers())
        with pytest.raises(ValueError, match="optimizer was not made in the scope.*Received"):
            model.compile(optimizer, "mse")


def test_compile_outside_the_scope_works_with_the_name_of_an_optimizer(two_replicas):
    with two_replicas.scope():
        model = keras.Sequential(_layers())
    model.compile("adam", "mse")
    model.fit(X, Y, verbose=0)
    assert model.optimizer.iterations.numpy() == 1


def test_fit_without_compile_is_refused(two_replicas):
    with two_replicas.scope():
        model = keras.Sequential(_layers())
    with pytest.raises(ValueError, match="compile"):
        model.fit(X, Y, verbose=0, callbacks=two_replicas.callbacks())


def test_optimizer_is_wrapped_once_only(two_replicas):
    with two_replicas.scope():
        optimizer = tfdist.DistributedOptimizer(keras.optimizers.SGD())
        with pytest.raises(ValueError, match="wrapped in DistributedOptimizer already.*Received"):
            tfdist.DistributedOptimizer(optimizer)
        model = keras.Sequential(_layers())
        model.compile(optimizer, "mse")
    assert model.optimizer is optimizer
    model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("thing", [object(), 3, None, keras.optimizers.SGD])
def test_only_optimizers_are_wrapped(thing):
    with pytest.raises(TypeError, match="Expected a `keras.optimizers.Optimizer`.*Received"):
        tfdist.DistributedOptimizer(thing)


def test_legacy_keras_is_refused(two_replicas):
    tf_keras = pytest.importorskip("tf_keras")
    with pytest.raises(TypeError, match="legacy `tf_keras`.*Received: tf_keras"):
        tfdist.DistributedOptimizer(tf_keras.optimizers.SGD())
    with two_replicas.scope():
        model = keras.Sequential(_layers())
        with pytest.raises(TypeError, match="legacy `tf_keras`"):
            model.compile(tf_keras.optimizers.SGD(), "mse")
        legacy = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
        legacy.compile("sgd", "mse")
    with pytest.raises(TypeError, match="legacy `tf_keras`"):
        legacy.fit(X, Y, verbose=0)


@pytest.mark.parametrize(
    "data",
    [
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(16, drop_remainder=True),
        tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: False).batch(4),
    ],
    ids=["known", "found out"],
)
def test_empty_data_set_is_refused(two_replicas, data):
    with two_replicas.scope():
        model = keras.Sequential(_layers())
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="no batches.*Received"):
        model.fit(data, verbose=0, callbacks=two_replicas.callbacks())


def test_scope_inside_another_strategys_scope_is_refused(two_replicas):
    other = tfdist.MirroredStrategy(DEVICES[:1])
    with two_replicas.scope():
        with two_replicas.scope():
            pass
        with pytest.raises(RuntimeError, match="scope of another strategy is active.*Received"):
            with other.scope():
                pass


def test_fit_inside_another_strategys_scope_is_refused(two_replicas):
    with two_replicas.scope():
        model = keras.Sequential(_layers())
        model.compile("sgd", "mse")
    with tfdist.MirroredStrategy(DEVICES[:1]).scope():
        with pytest.raises(RuntimeError, match="scope of another strategy is active.*Received"):
            model.fit(X, Y, verbose=0)


def test_nothing_is_refused_outside_a_scope():
    model = keras.Sequential(_layers())
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse", jit_compile=False)
    model.fit(X, Y, verbose=0)
    assert not isinstance(model.optimizer, tfdist.DistributedOptimizer)
