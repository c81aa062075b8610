"""Layers may be unfrozen between two fits: what is checked before the first is checked again."""

import warnings

import keras
import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tfdist.local.choices import LocalSGD

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")


def _model(layer):
    model = keras.Sequential([keras.Input((4,)), layer, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def _fit(model):
    model.fit(X, X[:, :1], batch_size=8, verbose=0)


def _compile_again(strategy, model):
    with strategy.scope():
        model.compile(keras.optimizers.SGD(0.1), "mse")


def test_batch_normalization_that_is_unfrozen_is_warned_of(two_replicas):
    with two_replicas.scope():
        layer = keras.layers.BatchNormalization(name="bn", trainable=False)
        model = _model(layer)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="BatchNormalization without")
        _fit(model)
    layer.trainable = True
    _compile_again(two_replicas, model)
    with pytest.warns(UserWarning, match="BatchNormalization without .*'bn'"):
        _fit(model)
    with warnings.catch_warnings():  # once for each compile
        warnings.filterwarnings("error", message="BatchNormalization without")
        _fit(model)


def test_layers_that_need_the_whole_batch_are_refused_later_too():
    strategy = tfdist.MirroredStrategy(DEVICES[:2], local=LocalSGD(2))
    with strategy.scope():
        layer = keras.layers.BatchNormalization(name="bn")
        model = _model(layer)
    _fit(model)
    layer.synchronized = True
    _compile_again(strategy, model)
    with pytest.raises(ValueError, match="cannot exchange values within a step.*'bn'"):
        _fit(model)
