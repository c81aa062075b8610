"""Files in and out of a scope: weights, optimizer state, iterations and learning rate survive."""

import contextlib
import pathlib

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


def _compile(model, mixed=False):
    optimizer = keras.optimizers.Adam(0.02, global_clipnorm=0.5)
    if mixed:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, dynamic_growth_steps=3)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def _model(mixed=False):
    keras.utils.set_random_seed(3)
    layers = [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(2)]
    return _compile(keras.Sequential(layers), mixed)


def _scope(kind):
    if kind == "plain":
        return contextlib.nullcontext()
    return tfdist.MirroredStrategy(DEVICES[: int(kind)]).scope()


def _fit(model, epochs=2):
    return model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0).history["loss"]


def _state(model):
    return [np.asarray(v.numpy()) for v in model.optimizer.variables]


full = pytest.mark.full
KINDS = [("2", "plain"), ("plain", "2"), ("2", "4"), ("2", "1"), ("2", "2")]


def _kinds(usual):
    return [kind if kind in usual else pytest.param(*kind, marks=full) for kind in KINDS]


@pytest.mark.parametrize(
    "mixed", [pytest.param(False, id=""), pytest.param(True, id="loss-scaled", marks=full)]
)
@pytest.mark.parametrize(("saved_in", "loaded_in"), _kinds(KINDS[:2]))
def test_model_file_keeps_everything(saved_in, loaded_in, mixed, tmp_path):
    with _scope(saved_in):
        model = _model(mixed)
    _fit(model)
    model.optimizer.learning_rate = 0.011
    path = tmp_path / "model.keras"
    model.save(path)
    with _scope(loaded_in):
        loaded = keras.saving.load_model(path)

    assert loaded.optimizer.iterations.numpy() == 8
    assert float(loaded.optimizer.learning_rate.numpy()) == pytest.approx(0.011)
    assert len(_state(loaded)) == len(_state(model))
    for ours, theirs in zip(_state(loaded), _state(model)):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(loaded.get_weights(), model.get_weights()):
        np.testing.assert_array_equal(ours, theirs)
    if not mixed:
        np.testing.assert_allclose(_fit(loaded), _fit(model), rtol=1e-5)
        for ours, theirs in zip(loaded.get_weights(), model.get_weights()):
            np.testing.assert_allclose(ours, theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("saved_in", "loaded_in"), _kinds(KINDS[:1]))
def test_weights_file_keeps_weights_and_optimizer(saved_in, loaded_in, tmp_path):
    with _scope(saved_in):
        model = _model()
    _fit(model)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    with _scope(loaded_in):
        other = _model()
    _fit(other, 1)
    other.load_weights(path)
    for ours, theirs in zip(_state(other), _state(model)):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(_fit(other), _fit(model), rtol=1e-5)


def test_accumulating_model_loads_without_tfdist(tmp_path, recwarn):
    strategy = tfdist.MirroredStrategy(DEVICES[:2], accumulation_steps=3)
    with strategy.scope():
        model = _model()
    _fit(model)
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path)
    assert type(loaded.optimizer) is keras.optimizers.Adam
    assert not [w for w in recwarn if "Skipping variable loading" in str(w.message)]
    for ours, theirs in zip(_state(loaded), _state(model)):
        np.testing.assert_array_equal(ours, theirs)


def test_unwrap_gives_the_optimizer_that_was_compiled_with(two_replicas):
    with two_replicas.scope():
        optimizer = keras.optimizers.Adam()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(optimizer, "mse")
    assert isinstance(model.optimizer, tfdist.DistributedOptimizer)
    assert two_replicas.unwrap(model) is optimizer


def test_file_is_no_larger_than_without_tfdist(tmp_path):
    sizes = {}
    for kind in ("plain", "2"):
        with _scope(kind):
            model = _model()
        _fit(model, 1)
        path = tmp_path / f"{kind}.weights.h5"
        model.save_weights(str(path))
        sizes[kind] = pathlib.Path(path).stat().st_size
    assert sizes["2"] <= sizes["plain"] * 1.01


def test_exported_model_serves(two_replicas, tmp_path):
    import tensorflow as tf

    with two_replicas.scope():
        model = _model()
    _fit(model, 1)
    model.export(str(tmp_path / "served"), verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(
        served.serve(X).numpy(), model.predict(X, verbose=0), atol=1e-6, rtol=0
    )


def test_an_optimizer_that_saves_in_its_own_way_does_so_under_tfdist(two_replicas, tmp_path):
    class Signed(keras.optimizers.SGD):
        signature = 0.0

        def save_own_variables(self, store):
            super().save_own_variables(store)
            store["signature"] = np.float32(4.0)

        def load_own_variables(self, store):
            self.signature = float(store["signature"][()])

    with two_replicas.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(Signed(), "mse")
        model.optimizer.build(model.trainable_variables)
    path = str(tmp_path / "model.weights.h5")
    model.save_weights(path)
    model.load_weights(path)
    assert two_replicas.unwrap(model).signature == 4.0
