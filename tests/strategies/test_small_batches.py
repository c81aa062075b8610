"""Batches with fewer samples than replicas: some replicas get none, and the results are right."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tests.strategies.families import FAMILIES

full = pytest.mark.full


def _strategy(replicas):
    return tfdist.MirroredStrategy(DEVICES[:replicas])


def _model(family, strategy, **options):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        return family.model(**options)


def _assert_equal(ours, theirs):
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, atol=1e-6, rtol=1e-6)


# These lines differ in what they compute, not in what a replica without samples does.
USUAL = ("convolution and pooling, 2D", "attention", "strings")


def _families(usual):
    return [name if name in usual else pytest.param(name, marks=full) for name in FAMILIES]


@pytest.mark.parametrize("family", _families(USUAL))
@pytest.mark.parametrize(
    ("replicas", "samples"),
    [(2, 1), *(pytest.param(*case, marks=full) for case in [(2, 3), (3, 1), (3, 2)])],
)
def test_every_layer_predicts_few_samples(family, replicas, samples):
    family = FAMILIES[family]
    x = family.samples(samples)
    expected = _model(family, tf.distribute.get_strategy()).predict(x, verbose=0)
    _assert_equal(_model(family, _strategy(replicas)).predict(x, verbose=0), expected)


@full
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_trains_with_a_last_batch_of_one_sample(family, replicas):
    family = FAMILIES[family]
    x, y = family.samples(5), np.arange(5.0, dtype="float32")[:, None]

    def train(strategy):
        model = _model(family, strategy)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        return model.get_weights()

    weights = train(_strategy(replicas))
    assert all(np.isfinite(value).all() for value in weights)
    if family.is_deterministic:
        _assert_equal(weights, train(tf.distribute.get_strategy()))


def _two_summands(**options):
    inputs = keras.Input((5, 3))
    first = keras.layers.LSTM(4)(inputs)
    second = keras.layers.Dense(4)(keras.layers.GlobalMaxPooling1D()(inputs))
    outputs = keras.layers.Dense(1)(first + second)
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse", **options)
    return model


@pytest.mark.parametrize("run_eagerly", [pytest.param(False, marks=full), True])
def test_single_samples_are_trained_tested_and_predicted_as_on_one_device(run_eagerly):
    x = np.random.default_rng(0).normal(size=(3, 5, 3)).astype("float32")
    y = x.sum(axis=(1, 2))[:, None]

    def results(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = _two_summands(run_eagerly=run_eagerly)
        return [
            model.train_on_batch(x[:1], y[:1]),
            model.test_on_batch(x[:1], y[:1]),
            model.predict_on_batch(x[:1]),
            model.predict(x[:1], verbose=0),
            model.fit(x[:1], y[:1], verbose=0).history["loss"],
            model.evaluate(x[:1], y[:1], verbose=0),
            *model.get_weights(),
        ]

    _assert_equal(results(_strategy(3)), results(tf.distribute.get_strategy()))


@full
def test_single_samples_with_several_steps_per_execution():
    x = np.random.default_rng(0).normal(size=(3, 5, 3)).astype("float32")

    def results(strategy):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = _two_summands(steps_per_execution=2)
        history = model.fit(x, x[:, 0, :1], batch_size=2, shuffle=False, verbose=0).history
        return [history["loss"], model.predict(x, batch_size=2, verbose=0), *model.get_weights()]

    _assert_equal(results(_strategy(2)), results(tf.distribute.get_strategy()))


def test_a_loop_of_ones_own_may_give_a_replica_an_empty_part(two_replicas):
    with two_replicas.scope():
        model = _two_summands()
    x = np.ones((1, 5, 3), "float32")
    parts = two_replicas.experimental_distribute_values_from_function(
        lambda context: tf.constant(x[context.replica_id_in_sync_group :])
    )
    predict = tf.function(lambda parts: two_replicas.run(model, args=(parts,)))
    first, second = two_replicas.experimental_local_results(predict(parts))
    np.testing.assert_allclose(first, model(x), atol=1e-6)
    assert second.shape[0] in (0, None)
    assert second.numpy().shape == (0, 1)


class Unstacks(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return tf.stack([self.dense(row[None])[0] for row in tf.unstack(x)])


def test_a_step_that_needs_a_static_size_is_told_what_to_do(two_replicas):
    with two_replicas.scope():
        model = Unstacks()
        model.compile("sgd", "mse")
    with (
        pytest.warns(UserWarning, match="failed where tfdist hides the number of samples"),
        pytest.raises(ValueError, match="None"),
    ):
        model.train_on_batch(np.ones((3, 2), "float32"), np.ones((3, 1), "float32"))
