"""BatchNormalization without synchronization: its moving statistics are the replicas' mean."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.devices import DEVICES
from tfdist.step import moving_statistics


def _model():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.BatchNormalization(momentum=0.5, name="bn")]
    )
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


def _data(samples):
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, 4)).astype("float32") * 3.0
    x[: samples // 2] += 5.0
    return x, np.zeros((samples, 1), "float32")


def _fit(strategy, samples, **options):
    x, y = _data(samples)
    with strategy.scope():
        model = _model()
    with pytest.warns(UserWarning, match="BatchNormalization without .*'bn'"):
        model.fit(x, y, batch_size=16, verbose=0, shuffle=False, **options)
    return model


def _expected(samples, replicas):
    """The mean over the replicas, weighted by their samples, of what each one's update gives."""
    x, _ = _data(samples)
    mean, variance = np.zeros(4), np.ones(4)
    for start in range(0, samples, 16):
        batch = x[start : start + 16]
        length = -(-len(batch) // replicas)
        parts = [batch[i * length : (i + 1) * length] for i in range(replicas)]
        shares = [len(part) / len(batch) for part in parts]
        mean = 0.5 * mean + 0.5 * sum(
            s * part.mean(0) for s, part in zip(shares, parts) if len(part)
        )
        variance = 0.5 * variance + 0.5 * sum(
            s * part.var(0) for s, part in zip(shares, parts) if len(part)
        )
    return mean, variance


@pytest.mark.parametrize(
    "samples", [33, *(pytest.param(n, marks=pytest.mark.full) for n in (32, 35))]
)
@pytest.mark.parametrize("replicas", [2, 4])
def test_read_and_saved_statistics_are_the_mean_over_the_replicas(samples, replicas, tmp_path):
    strategy = tfdist.MirroredStrategy(DEVICES[:replicas])
    model = _fit(strategy, samples)
    mean, variance = _expected(samples, replicas)
    layer = model.get_layer("bn")
    for variable, value in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
        np.testing.assert_allclose(variable.numpy(), value, rtol=1e-5, atol=1e-6)
        for part in strategy.experimental_local_results(variable.value):
            np.testing.assert_array_equal(part.numpy(), variable.numpy())
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = keras.saving.load_model(path).get_layer("bn")
    np.testing.assert_array_equal(loaded.moving_mean.numpy(), layer.moving_mean.numpy())


def test_prediction_does_not_depend_on_the_place_in_the_batch(two_replicas):
    model = _fit(two_replicas, 32)
    x = np.tile(_data(1)[0], (8, 1))
    predictions = model.predict(x, verbose=0)
    np.testing.assert_array_equal(predictions, np.tile(predictions[:1], (8, 1)))


def test_synchronized_and_frozen_layers_are_left_out():
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.BatchNormalization(synchronized=True),
            keras.layers.BatchNormalization(trainable=False),
            keras.layers.Dense(2, trainable=False),
            keras.layers.Dropout(0.5),
            keras.layers.BatchNormalization(name="local"),
        ]
    )
    local = model.get_layer("local")
    found = moving_statistics.local_statistics(model)
    assert found == [local.moving_mean, local.moving_variance]


def test_no_warning_for_one_replica():
    strategy = tfdist.MirroredStrategy(DEVICES[:1])
    with strategy.scope():
        model = _model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(*_data(16), verbose=0)


def test_average_of_an_empty_replica_counts_for_nothing(two_replicas):
    with two_replicas.scope():
        variable = keras.Variable(np.zeros(2, "float32"), trainable=False)

    def step():
        replica_id = tf.distribute.get_replica_context().replica_id_in_sync_group
        variable.value.assign([[3.0, 5.0], [np.nan, np.nan]][int(tf.get_static_value(replica_id))])
        share = [1.0, 0.0][int(tf.get_static_value(replica_id))]
        moving_statistics.average([variable], tfdist.step.weighting.Share(tf.constant(share)))

    tf.function(lambda: tf.distribute.MirroredStrategy.run(two_replicas, step))()
    for part in two_replicas.experimental_local_results(variable.value):
        np.testing.assert_array_equal(part.numpy(), [3.0, 5.0])


def test_a_frozen_layer_normalizes_as_on_one_device(two_replicas):
    x, y = _data(35)
    with two_replicas.scope():
        model = _model()
        model.get_layer("bn").trainable = False
        model.compile("sgd", "mse")
    alone = _model()
    alone.get_layer("bn").trainable = False
    alone.compile("sgd", "mse")
    alone.set_weights(model.get_weights())
    for one in (model, alone):  # a warning would be an error
        one.fit(x, y, batch_size=16, verbose=0, shuffle=False)
    for ours, expected in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
