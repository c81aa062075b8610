"""Four virtual CPU devices for the whole suite; TensorFlow cannot change them later."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import pytest

import tfdist

DEVICES = tfdist.testing.virtual_devices(4)

# Keras collects garbage after each test; what the imports have made stays, and is not searched.
gc.collect()
gc.freeze()


@pytest.fixture(params=[2, 3])
def strategy(request):
    """A strategy on several devices."""
    return tfdist.MirroredStrategy(DEVICES[: request.param])


@pytest.fixture
def two_replicas():
    return tfdist.MirroredStrategy(DEVICES[:2])


@pytest.fixture(autouse=True)
def _fresh_keras_state():
    yield
    keras.backend.clear_session()
    keras.config.set_dtype_policy("float32")
