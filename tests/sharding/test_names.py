"""Rules by the names of weights, which have the layers' names in them, as on one device."""

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES

# In each batch both replicas have the same samples, so that local steps too equal one device.
_SHAPE = (3, 4)
_X = np.random.default_rng(0).normal(size=(*_SHAPE, 5)).repeat(2, 0).reshape(24, 5)
_Y = np.random.default_rng(1).normal(size=(*_SHAPE, 3)).repeat(2, 0).reshape(24, 3)
_KINDS = {
    "optimizer": {"sharding": "optimizer"},
    "gradients": {"sharding": "gradients"},
    "parameters": {"sharding": "parameters"},
    "local": {"local": tfdist.LocalSGD(2)},
}


class Faster(keras.optimizers.SGD):
    """Trains the weights of some layers faster."""

    def update_step(self, gradient, variable, learning_rate):
        factor = 3.0 if "head/" in variable.name else 1.0
        super().update_step(gradient, variable, factor * learning_rate)


def _decays(make):
    optimizer = make(0.01, weight_decay=2.0)
    optimizer.exclude_from_weight_decay(var_names=["bias", "norm"])
    return optimizer


_OPTIMIZERS = {
    "AdamW": lambda: _decays(keras.optimizers.AdamW),
    "Lamb": lambda: _decays(keras.optimizers.Lamb),
    "SGD": lambda: _decays(keras.optimizers.SGD),
    "rates": lambda: Faster(0.05),
}


def _trained(make, devices, **options):
    keras.utils.set_random_seed(7)
    with tfdist.MirroredStrategy(DEVICES[:devices], **options).scope():
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(6, name="hidden")(inputs)
        hidden = keras.layers.LayerNormalization(name="norm")(hidden)
        model = keras.Model(inputs, keras.layers.Dense(3, name="head")(hidden))
        model.compile(make(), "mse")
    model.fit(_X, _Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AdamW", "optimizer"),
        ("AdamW", "parameters"),
        ("Lamb", "gradients"),
        ("SGD", "local"),
        ("rates", "gradients"),
        ("rates", "parameters"),
        ("rates", "local"),
    ],
)
def test_rules_by_name_are_those_of_one_device(name, kind):
    found = _trained(_OPTIMIZERS[name], 2, **_KINDS[kind])
    for one, expected in zip(found, _trained(_OPTIMIZERS[name], 1), strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6)
