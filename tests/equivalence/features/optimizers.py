"""Optimizers, what they do to gradients and weights, and regularization."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import Feature, Outcome, default_data, default_fit

_SCHEDULE = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.7)


def _regularized() -> list:
    return [keras.layers.Dense(16, activation="relu", kernel_regularizer="l2")]


def _constrained() -> list:
    return [keras.layers.Dense(16, kernel_constraint=keras.constraints.MaxNorm(0.7, axis=0))]


def _fit_weighted(model: keras.Model) -> Outcome:
    weights = np.random.default_rng(1).uniform(0.1, 3.0, 64)
    return default_fit(model, sample_weight=weights)


def _fit_class_weights(model: keras.Model) -> Outcome:
    return default_fit(model, class_weight={0: 0.2, 1: 1.0, 2: 2.5})


def _fit_unknown_length(model: keras.Model) -> Outcome:
    data = tf.data.Dataset.from_tensor_slices(default_data(67)).batch(16)
    data = data.filter(lambda x, y: tf.shape(x)[0] > 0)
    return Outcome.of(model, model.fit(data, epochs=2, verbose=0).history)


def _schedule_free(built: bool) -> keras.Model:
    model = classifier(lambda: optimizers.ScheduleFreeAdamW(0.01))()
    if built:
        model.optimizer.build(model.trainable_variables)
    return model


def _multi_optimizer() -> keras.optimizers.Optimizer:
    kernels = {".*/kernel": optimizers.Adam(0.01)}
    return optimizers.MultiOptimizer(optimizers.OptimizerMap(optimizers.SGD(0.1), kernels))


def _scaled_multi_optimizer() -> keras.optimizers.Optimizer:
    return optimizers.LossScaleOptimizer(_multi_optimizer(), dynamic_growth_steps=3)


# Those that not every supported Keras has, by the names of their classes.
_NEWER = {
    "Lamb": [Feature("Lamb", classifier(lambda: optimizers.Lamb(0.01)))],
    "ScheduleFreeAdamW": [
        Feature(
            "ScheduleFreeAdamW",
            functools.partial(_schedule_free, built=False),
            reference_build=functools.partial(_schedule_free, built=True),
            note="on one device Keras is right only if the optimizer is built before `fit`: else "
            "each step begins its average anew",
        ),
        Feature(
            "ScheduleFreeAdamW, built before fit", functools.partial(_schedule_free, built=True)
        ),
    ],
    "MultiOptimizer": [
        Feature("MultiOptimizer", classifier(_multi_optimizer)),
        Feature(
            "MultiOptimizer, data of unknown length",
            classifier(_multi_optimizer),
            _fit_unknown_length,
        ),
        Feature("MultiOptimizer in a LossScaleOptimizer", classifier(_scaled_multi_optimizer)),
    ],
}

FEATURES = [
    Feature("SGD", classifier()),
    Feature("SGD, momentum", classifier(lambda: optimizers.SGD(0.1, momentum=0.9))),
    Feature("SGD, Nesterov", classifier(lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True))),
    Feature("Adam", classifier(lambda: optimizers.Adam(0.01))),
    Feature("AdamW", classifier(lambda: optimizers.AdamW(0.01, weight_decay=0.1))),
    Feature("Nadam", classifier(lambda: optimizers.Nadam(0.01))),
    Feature("RMSprop", classifier(lambda: optimizers.RMSprop(0.01))),
    Feature("Adafactor", classifier(lambda: optimizers.Adafactor(0.01))),
    Feature("Adagrad", classifier(lambda: optimizers.Adagrad(0.1))),
    Feature("Adadelta", classifier(lambda: optimizers.Adadelta(1.0))),
    Feature("Adamax", classifier(lambda: optimizers.Adamax(0.01))),
    Feature("Ftrl", classifier(lambda: optimizers.Ftrl(0.1))),
    Feature("Lion", classifier(lambda: optimizers.Lion(0.001))),
    Feature("Muon", classifier(lambda: optimizers.Muon(0.01)), since=(3, 13)),
    Feature("L2 regularization", classifier(hidden=_regularized)),
    Feature("sample_weight", classifier(), _fit_weighted),
    Feature("class_weight", classifier(), _fit_class_weights),
    Feature("clipnorm", classifier(lambda: optimizers.SGD(0.1, clipnorm=0.05))),
    Feature("clipvalue", classifier(lambda: optimizers.SGD(0.1, clipvalue=0.01))),
    Feature("global_clipnorm", classifier(lambda: optimizers.SGD(0.1, global_clipnorm=0.1))),
    Feature(
        "EMA of the weights",
        classifier(lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)),
        note="`fit` ends with the averages",
    ),
    Feature(
        "EMA, overwriting every 3 updates",
        classifier(
            lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3)
        ),
    ),
    Feature("weight constraint", classifier(hidden=_constrained)),
    Feature("learning-rate schedule", classifier(lambda: optimizers.SGD(_SCHEDULE))),
    Feature("loss_scale_factor", classifier(lambda: optimizers.SGD(0.1, loss_scale_factor=128.0))),
]
FEATURES += [row for name, rows in _NEWER.items() if hasattr(optimizers, name) for row in rows]
