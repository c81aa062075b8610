"""Batches that do not divide evenly, down to replicas without a sample."""

from __future__ import annotations

import functools

import keras
from keras import optimizers

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import Feature, Outcome, default_data, default_fit


def _synchronized() -> list:
    return [
        keras.layers.Dense(16, activation="relu"),
        keras.layers.BatchNormalization(synchronized=True),
    ]


class _BatchMean(keras.metrics.Metric):
    """The mean of what each batch gives; a batch without samples gives NaN."""

    def __init__(self, **options):
        super().__init__(**options)
        self.total = self.add_variable((), "zeros", name="total")
        self.count = self.add_variable((), "zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts the batch as one."""
        self.total.assign_add(keras.ops.mean(keras.ops.square(y_pred)))
        self.count.assign_add(1.0)

    def result(self):
        """The mean over the batches."""
        return self.total / self.count


def _with_batch_mean() -> keras.Model:
    model = classifier()()
    model.compile(optimizers.SGD(0.1), model.loss, metrics=[_BatchMean(name="batch_mean")])
    return model


def _fit_and_predict(model: keras.Model, samples: int, batch_size: int) -> Outcome:
    """Checks order and number of what `predict` and `evaluate` give too."""
    outcome = default_fit(model, samples, batch_size=batch_size)
    x, y = default_data(samples)
    outcome.extra["predictions"] = model.predict(x, batch_size=batch_size, verbose=0)
    outcome.extra["steps"] = model.predict(x[:batch_size], steps=1, verbose=0)
    evaluated = model.evaluate(x, y, batch_size=batch_size, verbose=0, return_dict=True)
    outcome.history.update({f"evaluated_{name}": [v] for name, v in evaluated.items()})
    return outcome


def _fit(samples: int, batch_size: int = 16, **options):
    return functools.partial(default_fit, samples=samples, batch_size=batch_size, **options)


_ADAM = classifier(lambda: optimizers.Adam(0.01))
_WITH_SYNC_BN = classifier(lambda: optimizers.Adam(0.01), hidden=_synchronized)

FEATURES = [
    Feature("batch of 32 samples, also on 3 replicas", _ADAM, _fit(96, 32)),
    Feature("batch of 13 samples", _ADAM, _fit(39, 13)),
    Feature("last batch of 1 sample", _ADAM, _fit(65)),
    Feature("last batch of 2 samples", _ADAM, _fit(66)),
    Feature("last batch of 3 samples", _ADAM, _fit(67)),
    Feature("batches of 1 sample", classifier(), _fit(5, 1)),
    Feature(
        "metric that adds the mean of a batch, batches of 1 sample",
        _with_batch_mean,
        _fit(5, 1, validate=True),
    ),
    Feature(
        "last batch of 1, L2 and clipping",
        classifier(
            lambda: optimizers.SGD(0.1, clipnorm=0.05),
            hidden=lambda: [keras.layers.Dense(16, kernel_regularizer="l2")],
        ),
        _fit(65),
    ),
    Feature("synchronized BatchNormalization", _WITH_SYNC_BN, _fit(64)),
    Feature("synchronized BatchNormalization, last batch of 1", _WITH_SYNC_BN, _fit(65)),
    Feature("synchronized BatchNormalization, last batch of 3", _WITH_SYNC_BN, _fit(67)),
    Feature(
        "synchronized BatchNormalization, accumulation",
        classifier(lambda: optimizers.SGD(0.05), hidden=_synchronized),
        _fit(64),
        options={"accumulation_steps": 2},
        reference_build=classifier(
            lambda: optimizers.SGD(0.05, gradient_accumulation_steps=2), hidden=_synchronized
        ),
        note="against Keras' own accumulation on one device: the statistics are per micro-batch",
    ),
    Feature(
        "predict and evaluate, uneven batches",
        _ADAM,
        functools.partial(_fit_and_predict, samples=67, batch_size=16),
    ),
    Feature(
        "predict and evaluate, batches of 3",
        _ADAM,
        functools.partial(_fit_and_predict, samples=10, batch_size=3),
    ),
]
