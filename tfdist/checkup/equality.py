"""Trains by all ranks and on one device, and compares the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.checkup.features import EPOCHS, Feature
from tfdist.checkup.report import Equality
from tfdist.strategies.factory import Strategy
from tfdist.strategies.multi_process import MultiProcessStrategy

_DIGITS = 1e15  # differences travel as integers


def compare(
    strategy: MultiProcessStrategy, name: str, features: Sequence[Feature]
) -> list[Equality]:
    """Trains with each feature both ways. All processes call it.

    Each process computes what one device gives for some of the features, at the same time.

    Args:
        strategy: a strategy without options.
        name: its name, to make others with the options of the features.
        features: what to train with.
    """
    processes, replicas = strategy.processes, strategy.num_replicas_in_sync
    expected = {
        number: train(feature, replicas)
        for number, feature in enumerate(features)
        if number % processes.size == processes.rank
    }
    found = []
    for number, feature in enumerate(features):
        own = strategy if not feature.options else Strategy(name, **feature.options)
        weights = train(feature, replicas, own)
        root = number % processes.size
        reference = processes.broadcast(expected.get(number, weights), root)
        rows = processes.all_gather([int(_DIGITS * difference(weights, reference))])[:, 0]
        worst = int(rows.argmax())
        equality = Equality(feature.name, float(rows[worst]) / _DIGITS, worst, feature.tolerance)
        found.append(equality)
    return found


def train(
    feature: Feature,
    replicas: int,
    strategy: tf.distribute.Strategy | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> list[np.ndarray]:
    """The weights after training with a feature.

    Args:
        feature: the feature.
        replicas: of all ranks, also if one device trains.
        strategy: None for one device.
        callbacks: for `fit`.
    """
    keras.utils.set_random_seed(1)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = feature.build(is_alone=strategy is None)
    options = {"epochs": EPOCHS, "shuffle": False, "verbose": 0, "callbacks": [*callbacks]}
    model.fit(feature.data(replicas), **options)
    return model.get_weights()


def difference(weights: Sequence[np.ndarray], reference: Sequence[np.ndarray]) -> float:
    """The largest difference of an element; 1000 for more, and where one is not finite.

    Example:

    >>> import numpy as np
    >>> from tfdist.checkup.equality import difference
    >>> difference([np.array([1.0, 2.0])], [np.array([1.5, 2.0])])
    0.5
    >>> difference([np.array([np.nan])], [np.array([1.0])])
    1000.0
    """
    found = 0.0
    for ours, expected in zip(weights, reference):
        off = float(np.max(np.abs(ours.astype("float64") - expected)))
        found = max(found, off) if off < 1000 else 1000.0
    return found
