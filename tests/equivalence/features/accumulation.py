"""Gradient accumulation: k micro-batches against one batch k times as large."""

from __future__ import annotations

import functools

import keras
from keras import optimizers

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import Feature, default_fit

_SCHEDULE = optimizers.schedules.ExponentialDecay(0.1, 2, 0.7)
_LOSS_NOTE = "history: the loss is averaged over micro-batches, between which nothing changes"


def _against_large_batch(name: str, steps: int, build=None, **fit_options) -> Feature:
    """Micro-batches of 48 / steps samples against batches of 48."""
    build = build or classifier(lambda: optimizers.Adam(0.01))
    return Feature(
        name,
        build,
        functools.partial(default_fit, samples=96, batch_size=48 // steps, **fit_options),
        options={"accumulation_steps": steps},
        reference_fit=functools.partial(default_fit, samples=96, batch_size=48),
        note=_LOSS_NOTE,
    )


def _keras_accumulation(steps: int) -> keras.Model:
    return classifier(lambda: optimizers.SGD(0.1, gradient_accumulation_steps=steps))()


FEATURES = [
    _against_large_batch("accumulation_steps=2", 2),
    _against_large_batch("accumulation_steps=3", 3),
    _against_large_batch("accumulation_steps=4", 4),
    _against_large_batch(
        "accumulation, global_clipnorm",
        4,
        classifier(lambda: optimizers.SGD(0.1, global_clipnorm=0.1)),
    ),
    _against_large_batch(
        "accumulation, schedule counts updates", 3, classifier(lambda: optimizers.SGD(_SCHEDULE))
    ),
    _against_large_batch(
        "accumulation, EMA with overwriting",
        2,
        classifier(lambda: optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)),
    ),
    _against_large_batch(
        "accumulation, steps_per_execution=4",
        4,
        classifier(lambda: optimizers.Adam(0.01), steps_per_execution=4),
    ),
    Feature(
        "accumulation, remainder of an epoch carries over",
        classifier(),
        functools.partial(default_fit, samples=80, epochs=3),
        options={"accumulation_steps": 3},
        reference_build=functools.partial(_keras_accumulation, 3),
        note="5 steps an epoch, 3 per update; against Keras' own accumulation on one device",
    ),
    Feature(
        "accumulation_steps=3, steps_per_execution=4, remainders",
        classifier(steps_per_execution=4),
        functools.partial(default_fit, samples=80, epochs=3),
        options={"accumulation_steps": 3},
        reference_build=functools.partial(_keras_accumulation, 3),
    ),
    Feature(
        "accumulation, short last batch",
        classifier(),
        functools.partial(default_fit, samples=65),
        options={"accumulation_steps": 2},
        reference_build=functools.partial(_keras_accumulation, 2),
    ),
]
