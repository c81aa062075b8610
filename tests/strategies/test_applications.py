"""The smallest model of each family of `keras.applications`, with fewer samples than replicas."""

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


@pytest.mark.parametrize("name", SIDES)
def test_single_samples_are_predicted_and_trained(name, two_replicas):
    make, side = getattr(keras.applications, name), SIDES[name]
    options = {"weights": None, "include_top": False, "pooling": "avg"}
    x = np.random.default_rng(0).uniform(0, 255, (3, side, side, 3)).astype("float32")
    alone = make(input_shape=(side, side, 3), **options)
    with two_replicas.scope():
        model = make(input_shape=(side, side, 3), **options)
        model.compile(keras.optimizers.SGD(1e-4), "mse")
    model.set_weights(alone.get_weights())
    for samples in (x[:1], x):
        expected = alone.predict(samples, verbose=0)
        np.testing.assert_allclose(model.predict(samples, verbose=0), expected, 1e-4, 1e-5)
    loss = model.train_on_batch(x[:1], np.zeros((1, expected.shape[1])))
    assert np.isfinite(loss)
    assert all(np.isfinite(value).all() for value in model.get_weights())
