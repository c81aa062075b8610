"""The smallest model of each family of `keras.applications`, also with one sample for two."""

import keras
import numpy as np
import pytest

pytestmark = pytest.mark.full

SIDES = {
    "ConvNeXtTiny": 32,
    "DenseNet121": 32,
    "EfficientNetB0": 32,
    "EfficientNetV2B0": 32,
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "MobileNet": 32,
    "MobileNetV2": 32,
    "MobileNetV3Small": 32,
    "NASNetMobile": 32,
    "ResNet50": 32,
    "ResNet50V2": 32,
    "VGG16": 32,
    "Xception": 71,
}


def _make(name):
    options = {"weights": None, "include_top": False, "pooling": "avg"}
    return getattr(keras.applications, name)(input_shape=(SIDES[name], SIDES[name], 3), **options)


def _images(name, dtype):
    side = SIDES[name]
    return np.random.default_rng(0).uniform(0, 255, (3, side, side, 3)).astype(dtype)


@pytest.mark.parametrize("name", SIDES)
def test_single_samples_are_predicted(name, two_replicas):
    x, alone = _images(name, "float32"), _make(name)
    with two_replicas.scope():
        model = _make(name)
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    model.set_weights(alone.get_weights())
    for samples in (x[:1], x):
        expected = alone.predict(samples, verbose=0)
        np.testing.assert_allclose(model.predict(samples, verbose=0), expected, 1e-4, 1e-5)


@pytest.fixture
def float64():
    """Twice the digits: these networks make large errors of small ones."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


def _deterministic(model):
    """`model` without random numbers, and with BatchNormalization that only passes on."""
    for layer in model._flatten_layers(include_self=False):
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.trainable = False
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
        if hasattr(layer, "drop_path_rate"):
            layer.drop_path_rate = 0.0
    model.compile(keras.optimizers.SGD(0.01, global_clipnorm=1.0), "mse")
    return model


def _normalize(model, x):
    """Gives each BatchNormalization the statistics of `x`, so that signals do not vanish."""
    layers = [one for one in model._flatten_layers() if hasattr(one, "moving_variance")]
    for layer in layers:
        layer.momentum = 0.0
    model(x, training=True)


@pytest.mark.parametrize("name", SIDES)
def test_training_equals_one_device(name, two_replicas, float64):
    x, alone = _images(name, "float64"), _make(name)
    y = np.random.default_rng(1).normal(size=(3, alone.output_shape[-1]))
    _normalize(alone, x)
    before = alone.get_weights()
    with two_replicas.scope():
        model = _deterministic(_make(name))
    model.set_weights(before)
    for one in (_deterministic(alone), model):
        for samples in (slice(3), slice(1)):
            one.train_on_batch(x[samples], y[samples])
    after = alone.get_weights()
    assert max(np.abs(new - old).max() for new, old in zip(after, before)) > 1e-5
    for ours, expected in zip(model.get_weights(), after, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
