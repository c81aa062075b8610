"""Synchronized BatchNormalization behind a mask normalizes by what the global batch counts."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfdist
from tests.devices import DEVICES

full = pytest.mark.full
_RENORM = "renorm" in inspect.signature(layers.BatchNormalization).parameters


def _tokens(samples):
    """Padded texts: other numbers of tokens in each part of a batch."""
    random = np.random.default_rng(3)
    tokens = random.integers(1, 20, (samples, 6))
    tokens[np.arange(6)[None, :] >= random.integers(1, 7, samples)[:, None]] = 0
    return tokens


def _model(**options):
    keras.utils.set_random_seed(5)
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8, mask_zero=True)(inputs)
    x = layers.Dense(8, activation="tanh")(x)
    x = layers.BatchNormalization(momentum=0.5, synchronized=True, name="bn")(x)
    model = keras.Model(inputs, layers.Dense(4)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, **options)
    return model


def _assert_trains_as_one_device(strategy, tokens, **options):
    def train(model):
        model.fit(tokens, tokens % 4, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return [*model.get_weights(), model.predict(tokens, verbose=0)]

    expected = train(_model(**options))
    with strategy.scope():
        model = _model(**options)
    for ours, theirs in zip(train(model), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    layer = model.get_layer("bn")
    for variable in (layer.moving_mean, layer.moving_variance):
        for copy in strategy.experimental_local_results(variable.value):
            np.testing.assert_array_equal(copy.numpy(), variable.numpy())


@pytest.mark.parametrize("replicas", [2, *(pytest.param(n, marks=full) for n in (1, 3, 4))])
@pytest.mark.parametrize("samples", [33, *(pytest.param(n, marks=full) for n in (32, 35))])
def test_training_equals_one_device(replicas, samples):
    """With 33 samples some replicas have none of the last batch."""
    _assert_trains_as_one_device(tfdist.MirroredStrategy(DEVICES[:replicas]), _tokens(samples))


@pytest.mark.parametrize("option", ["jit_compile", pytest.param("run_eagerly", marks=full)])
def test_compiled_and_eager_steps_equal_one_device(two_replicas, option):
    _assert_trains_as_one_device(two_replicas, _tokens(33), **{option: True})


def test_a_replica_whose_samples_are_all_masked_counts_for_nothing(two_replicas):
    tokens = _tokens(32)
    tokens[8:16] = 0  # the part of the second replica
    _assert_trains_as_one_device(two_replicas, tokens)


_KINDS = {"float32": 1e-6, "float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}


@pytest.mark.parametrize("dtype", _KINDS)
@pytest.mark.parametrize("features", [4, 1])
def test_outputs_and_statistics_of_all_kinds_of_numbers_are_those_of_one_device(
    two_replicas, dtype, features
):
    random = np.random.default_rng(0)
    x, mask = random.normal(size=(5, 3, features)) * 3.0 + 1.0, random.random((5, 3)) > 0.4
    x[~mask] = 100.0  # is not looked at
    _assert_normalizes_as_one_device(two_replicas, dtype, {}, x, mask)


@pytest.mark.skipif(not _RENORM, reason="this Keras has no `renorm`")
def test_renormalization_is_that_of_one_device(two_replicas):
    random = np.random.default_rng(0)
    x, mask = random.normal(size=(5, 3, 4)) * 3.0 + 1.0, random.random((5, 3)) > 0.4
    _assert_normalizes_as_one_device(two_replicas, "float32", {"renorm": True}, x, mask)


def _assert_normalizes_as_one_device(strategy, dtype, options, x, mask):
    """Two steps of a layer; the second replica has fewer of the five samples than the first."""

    def normalize(layer, x, mask):
        x = tf.cast(x, dtype)
        return [layer(x, training=True, mask=mask), layer(x + 1.0, training=True, mask=mask)]

    def make():
        policy = f"mixed_{dtype}" if dtype.endswith("16") else dtype
        layer = layers.BatchNormalization(synchronized=True, dtype=policy, **options)
        layer.build((None, *x.shape[1:]))
        return layer

    alone = make()
    expected = normalize(alone, x, mask)
    with strategy.scope():
        layer = make()
    parts = strategy.experimental_distribute_values_from_function(
        lambda context: tuple(
            tf.constant(values[3 * context.replica_id_in_sync_group :][:3]) for values in (x, mask)
        )
    )
    step = tf.function(lambda x, mask: strategy.run(normalize, (layer, x, mask)))
    for ours, theirs in zip(step(*parts), expected, strict=True):
        ours = tf.concat(strategy.experimental_local_results(ours), axis=0)
        found, wanted = (tf.cast(values, tf.float64).numpy()[mask] for values in (ours, theirs))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=_KINDS[dtype] * 4)
    for ours, theirs in zip(layer.weights, alone.weights, strict=True):
        tolerance = min(_KINDS[dtype], 1e-6)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance)


def test_a_layer_that_is_not_synchronized_exchanges_nothing(two_replicas):
    with two_replicas.scope():
        model = _model()
        model.get_layer("bn").synchronized = False
    tokens = _tokens(32)
    with pytest.warns(UserWarning, match="BatchNormalization without .*'bn'"):
        model.fit(tokens, tokens % 4, batch_size=16, shuffle=False, verbose=0)
    alone = _model()
    alone.fit(tokens, tokens % 4, batch_size=16, shuffle=False, verbose=0)
    found = [one.get_layer("bn").moving_variance.numpy() for one in (model, alone)]
    assert np.abs(found[0] - found[1]).max() > 1e-3
