"""A wrapped optimizer is a `LossScaleOptimizer` where the inner one is."""

import keras
import numpy as np
import pytest

import tfdist

X = 0.1 * np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
KINDS = {
    "plain": lambda: keras.optimizers.Adam(0.01),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    "wrapped": lambda: tfdist.DistributedOptimizer(keras.optimizers.Adam(0.01)),
    "scaled, wrapped": lambda: tfdist.DistributedOptimizer(KINDS["scaled"]()),
}


def is_scaled(optimizer):
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def model_with(optimizer, strategy):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(optimizer(), "mse")
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_mixed_float16_is_scaled_once(kind, two_replicas):
    keras.config.set_dtype_policy("mixed_float16")
    model = model_with(KINDS[kind], two_replicas)
    assert is_scaled(model.optimizer) and isinstance(model.optimizer, tfdist.DistributedOptimizer)
    inner = model.optimizer.unwrap()
    assert is_scaled(inner) and isinstance(inner.inner_optimizer, keras.optimizers.Adam)
    model.fit(X, X[:, :1], batch_size=4, verbose=0)
    assert float(model.optimizer.dynamic_scale) == inner.initial_scale
    assert int(model.optimizer.iterations) == 3


def test_it_is_none_without_a_loss_scale(two_replicas):
    model = model_with(KINDS["plain"], two_replicas)
    assert not is_scaled(model.optimizer)
    assert type(model.optimizer) is tfdist.DistributedOptimizer


def test_it_is_saved_and_loaded(two_replicas, tmp_path):
    keras.config.set_dtype_policy("mixed_float16")
    model = model_with(KINDS["scaled"], two_replicas)
    model.fit(X, X[:, :1], batch_size=4, verbose=0)
    model.save(tmp_path / "model.keras")
    with two_replicas.scope():
        again = keras.saving.load_model(tmp_path / "model.keras")
    for ours, theirs in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert is_scaled(again.optimizer)
    plain = keras.saving.load_model(tmp_path / "model.keras").optimizer
    assert type(plain) is keras.optimizers.LossScaleOptimizer and int(plain.iterations) == 3


@pytest.mark.parametrize("kind", ["wrapped", "scaled, wrapped"])
def test_its_configuration_makes_it_again(kind):
    optimizer = KINDS[kind]()
    config = keras.saving.serialize_keras_object(optimizer)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is type(optimizer) and again.get_config() == optimizer.get_config()
    by_config = tfdist.DistributedOptimizer.from_config(optimizer.get_config())
    assert type(by_config) is type(optimizer)


def test_weight_decay_is_that_of_the_inner_optimizer():
    if not hasattr(keras.optimizers, "Muon"):
        pytest.skip("this Keras has no Muon")
    decayed = []
    for wrap in (lambda optimizer: optimizer, tfdist.DistributedOptimizer):
        variable = keras.Variable(2.0)
        wrap(keras.optimizers.Muon(0.1, adam_weight_decay=0.5))._apply_weight_decay([variable])
        decayed.append(float(variable))
    assert decayed[0] == decayed[1] < 2.0
