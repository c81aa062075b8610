"""Keras 3 on one device: a step without any exchange.

Options: "late" for an update that begins only when all gradients are computed, as after an
exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from benchmarks.side_by_side import fitting, models_keras, recording, work


class LateSGD(keras.optimizers.SGD):
    """Updates no variable before the gradients of all variables are computed."""

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """As Keras' own."""
        with tf.control_dependencies([tf.group(*grads)]):
            super().apply(grads, trainable_variables)


def main() -> None:
    """Trains."""
    arguments = recording.parse(__doc__)
    keras.utils.set_random_seed(work.SEED)
    model = models_keras.build(arguments.work, keras)
    optimizer = models_keras.optimizer(arguments.work, keras)
    if arguments.options.get("late"):
        optimizer = LateSGD.from_config(optimizer.get_config())
    model.compile(optimizer, models_keras.loss(keras))
    recorder = recording.Recorder(arguments, fitting.versions("keras"), fitting.parameters(model))
    samples = work.WORKS[arguments.work].samples(arguments.batch)
    fitting.fit(model, keras, samples, arguments.batch, recorder, [])


if __name__ == "__main__":
    main()
