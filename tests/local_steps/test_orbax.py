"""`OrbaxCheckpoint` reads the variables of the first replica: refused where these are not all."""

import keras
import numpy as np
import pytest

import tests.devices  # noqa: F401
import tfdist
from tests.log_messages import log_messages
from tfdist.processes.orbax import refuse_orbax

_Kind = getattr(keras.callbacks, "OrbaxCheckpoint", None)
pytestmark = pytest.mark.skipif(_Kind is None, reason="this Keras has no OrbaxCheckpoint")
LOCAL = tfdist.LocalSGD(2)


class Orbax(_Kind or keras.callbacks.Callback):
    """Saves nothing, as Orbax need not be installed."""

    def __init__(self, save_freq):
        keras.callbacks.Callback.__init__(self)
        self.save_freq = save_freq
        self.epochs = 0

    def on_train_batch_end(self, batch, logs=None):
        pass

    def on_epoch_end(self, epoch, logs=None):
        self.epochs += 1

    def on_train_end(self, logs=None):
        pass


def _fit(callback, **options):
    with tfdist.MirroredStrategy(["CPU:0", "CPU:1"], **options).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    before = model.get_weights()
    try:
        model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0, callbacks=[callback])
    except ValueError:
        for old, new in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
        raise


def test_within_an_epoch_of_local_steps():
    with pytest.raises(ValueError, match="within an epoch, .* save_freq=10, local=LocalSGD"):
        _fit(Orbax(10), local=LOCAL)


def test_in_sharded_training():
    with pytest.raises(ValueError, match="With `sharding` a replica has parts only"):
        _fit(Orbax("epoch"), sharding="optimizer")


def test_in_several_processes():
    with pytest.raises(ValueError, match="each process would write the same folder"):
        refuse_orbax([Orbax("epoch")], True, None, None)


@pytest.mark.parametrize(("save_freq", "options"), [("epoch", {"local": LOCAL}), (10, {})])
def test_where_the_first_replica_has_all_weights(save_freq, options):
    callback = Orbax(save_freq)
    with log_messages() as messages:
        _fit(callback, **options)
    assert callback.epochs == 1
    lacks = "OrbaxCheckpoint saves that of the first replica only"
    assert sum(lacks in message for message in messages) == ("local" in options)
