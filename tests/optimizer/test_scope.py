"""An optimizer that the user has wrapped belongs to the strategy in whose scope it was made."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES

X = np.ones((8, 2), "float32")
Y = np.ones((8, 1), "float32")


def _wrapped():
    return tfdist.DistributedOptimizer(keras.optimizers.SGD(0.1))


def _scaled():
    """As Keras makes it of a wrapped optimizer with mixed precision."""
    return keras.optimizers.LossScaleOptimizer(_wrapped())


def _wrapped_and_scaled():
    inner = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    return tfdist.DistributedOptimizer(inner)


def _made_by_another_strategy():
    with tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=2).scope():
        return _wrapped()


def _model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.mark.parametrize(
    "make", [_wrapped, _scaled, _wrapped_and_scaled, _made_by_another_strategy]
)
def test_one_of_another_scope_is_refused_by_compile(make, two_replicas):
    optimizer = make()
    with two_replicas.scope():
        model = _model()
        with pytest.raises(ValueError, match="not made in the scope of this Mirrored.*Received"):
            model.compile(optimizer, "mse")


def test_one_that_loss_scaling_from_the_scope_wraps_is_refused(two_replicas):
    inner = _wrapped()
    with two_replicas.scope():
        model = _model()
        with pytest.raises(ValueError, match="optimizer=distributed_sgd.* of type Distributed"):
            model.compile(keras.optimizers.LossScaleOptimizer(inner), "mse")


def test_the_optimizer_inside_must_be_of_the_scope_too(two_replicas):
    inner = keras.optimizers.SGD(0.1)
    with two_replicas.scope():
        model, optimizer = _model(), tfdist.DistributedOptimizer(inner)
        with pytest.raises(ValueError, match="optimizer=sgd.* of type SGD"):
            model.compile(optimizer, "mse")


def test_an_attribute_of_the_model_is_refused_by_fit(two_replicas):
    other = _wrapped()
    with two_replicas.scope():
        model = _model()
        model.compile("sgd", "mse")
    model.other = other
    with pytest.raises(ValueError, match="not made in the scope"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("make", [_wrapped, _made_by_another_strategy])
def test_a_loop_of_ones_own_refuses_it(make, two_replicas):
    optimizer = make()
    with two_replicas.scope():
        variable = keras.Variable(0.0)

    def step():
        optimizer.apply([tf.constant(1.0)], [variable])

    with pytest.raises(ValueError, match="not made in the scope of this Mirrored.*Received"):
        two_replicas.run(step)
    assert variable.numpy() == 0.0


def _fitted(model):
    model.fit(X, Y, batch_size=4, verbose=0)
    return int(model.optimizer.iterations)


def test_what_is_made_in_the_scope_trains_and_is_loaded(two_replicas, tmp_path):
    path = tmp_path / "model.keras"
    with two_replicas.scope():
        model = _model()
        model.compile(_wrapped(), "mse")
    assert _fitted(model) == 2
    model.save(path)
    with two_replicas.scope():
        loaded = keras.saving.load_model(path)
    assert isinstance(loaded.optimizer, tfdist.DistributedOptimizer)
    assert _fitted(loaded) == 4


def test_without_a_scope_it_trains_on_one_device():
    model = _model()
    model.compile(_wrapped(), "mse")
    assert _fitted(model) == 2
