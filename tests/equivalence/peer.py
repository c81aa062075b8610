"""Trains one feature with plain Keras under TensorFlow's own MirroredStrategy, as JSON.

Run in a process of its own, because it may crash or hang: python -m tests.equivalence.peer NAME
"""

from __future__ import annotations

import json
import sys

import keras
import tensorflow as tf

from tests.conftest import DEVICES
from tests.equivalence import harness
from tests.equivalence.features import FEATURES

REPLICAS = 2


def measure(feature: harness.Feature) -> dict:
    """What plain Keras gives for `feature` on two replicas."""
    expected = harness.reference(feature)
    keras.utils.set_random_seed(harness.SEED)
    strategy = tf.distribute.MirroredStrategy(DEVICES[:REPLICAS])
    with strategy.scope():
        model = feature.build()
    steps = feature.options.get("accumulation_steps")
    if steps:
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        optimizer.gradient_accumulation_steps = steps
    outcome = feature.fit(model)
    return {
        "weight_difference": harness.weight_difference(outcome, expected),
        "history_difference": harness.history_difference(outcome, expected)
        if feature.history
        else 0.0,
    }


def main() -> None:
    """Prints the result of the feature named on the command line as one line of JSON."""
    feature = next(feature for feature in FEATURES if feature.name == sys.argv[1])
    try:
        result = measure(feature)
    except Exception as error:  # whatever plain Keras raises is the result
        result = {"error": type(error).__name__}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
