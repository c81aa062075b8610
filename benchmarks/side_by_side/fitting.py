"""`fit` as all systems on TensorFlow use it, with Keras 3 or tf_keras."""

from __future__ import annotations

import math
from importlib.metadata import version
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.side_by_side import recording


def fit(
    model: Any,
    keras: Any,
    samples: tuple[np.ndarray, np.ndarray],
    batch: int,
    recorder: recording.Recorder,
    callbacks: list[Any],
    reported: float = 1.0,
) -> None:
    """Trains for the recorder's steps.

    Args:
        model: the compiled model.
        keras: the module of the model: Keras 3 or tf_keras.
        samples: inputs and labels.
        batch: the number of samples of a step.
        recorder: is told of each step.
        callbacks: further callbacks, which come first.
        reported: the factor by which the framework multiplies the losses in its logs.
    """

    class Steps(keras.callbacks.Callback):
        total = 0.0
        # For tfdist: as with the other systems, ranks need not agree after each batch, and nobody
        # has to compare weights before and after this callback.
        decides_in_batches = False
        changes_variables = False

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            # Keras gives the mean over all steps so far.
            total = float((logs or {})["loss"]) / reported * (batch + 1)
            recorder.step_done(total - self.total)
            self.total = total

    data = tf.data.Dataset.from_tensor_slices(samples).repeat().batch(batch, drop_remainder=True)
    model.fit(
        data.prefetch(2),
        steps_per_epoch=recorder.steps,
        epochs=1,
        verbose=0,
        callbacks=[*callbacks, Steps()],
    )


def parameters(model: Any) -> int:
    """The number of trained parameters of a model."""
    return sum(math.prod(variable.shape) for variable in model.trainable_variables)


def versions(*names: str) -> dict[str, str]:
    """The versions of TensorFlow, numpy and these packages."""
    return {name: version(name) for name in ("tensorflow", "numpy", *names)}
