"""Keras callbacks: those that decide, and those that write and read files."""

from __future__ import annotations

import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import optimizers

from tests.equivalence.features.common import classifier
from tests.equivalence.harness import (
    Feature,
    Outcome,
    default_data,
    default_fit,
    optimizer_state,
)

_ADAM = classifier(lambda: optimizers.Adam(0.01))


def _fit_plateau(model: keras.Model) -> Outcome:
    plateau = keras.callbacks.ReduceLROnPlateau(
        monitor="loss", factor=0.3, patience=1, min_delta=0.1
    )
    outcome = default_fit(model, epochs=5, callbacks=[plateau])
    outcome.extra["learning_rate"] = model.optimizer.learning_rate.numpy()
    return outcome


def _fit_scheduler(model: keras.Model) -> Outcome:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)
    return default_fit(model, callbacks=[scheduler])


def _fit_early_stopping(model: keras.Model) -> Outcome:
    stopping = keras.callbacks.EarlyStopping(
        monitor="val_loss", min_delta=0.2, patience=1, restore_best_weights=True
    )
    return default_fit(model, validate=True, epochs=8, callbacks=[stopping])


def _fit_checkpoints(model: keras.Model) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "{epoch}.weights.h5"
        checkpoint = keras.callbacks.ModelCheckpoint(str(path), save_weights_only=True)
        outcome = default_fit(model, epochs=3, callbacks=[checkpoint])
        model.load_weights(str(path).format(epoch=2))
        outcome.extra["second"] = np.concatenate([w.ravel() for w in model.get_weights()])
        outcome.extra["optimizer"] = optimizer_state(model)
    return outcome


def _classifier_of_the_guide() -> keras.Model:
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(16, activation="relu")(inputs)
    hidden = keras.layers.Dense(16, activation="relu")(hidden)
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    model.compile(
        optimizer=optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def _fit_as_in_the_guide(model: keras.Model) -> Outcome:
    """Training, validation and test sets; a second run goes on from the first one's checkpoint."""
    x, y = default_data(99)
    training, validation, test = (
        tf.data.Dataset.from_tensor_slices((x[part], y[part])).batch(16)
        for part in (slice(65), slice(65, 81), slice(81, 99))
    )
    strategy = model.distribute_strategy
    with tempfile.TemporaryDirectory() as folder:
        processes = getattr(strategy, "processes", None)
        shared = processes.all_gather_texts(folder)[0] if processes else folder
        path = f"{shared}/ckpt-{{epoch}}.keras"
        checkpoint = keras.callbacks.ModelCheckpoint(path, save_freq="epoch")
        model.fit(training, validation_data=validation, verbose=0, callbacks=[checkpoint])
        with strategy.scope():
            model = keras.models.load_model(path.format(epoch=1))
        # Before the folder goes, all processes have read the file.
        history = model.fit(training, validation_data=validation, epochs=2, verbose=0)
    return Outcome.of(model, history.history, test=model.evaluate(test, verbose=0))


class _Interrupt(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2:
            raise KeyboardInterrupt


def _forget(model: keras.Model) -> None:
    """Sets all that training changes to zero, as if the process had started anew."""
    for variable in [*model.variables, *model.optimizer.variables]:
        if "float" in str(variable.dtype) and "learning_rate" not in variable.path:
            variable.assign(np.zeros(variable.shape))
    accumulator = getattr(model.optimizer, "accumulator", None)
    if accumulator is not None:
        for variable in [*accumulator.sums, accumulator.micro_step]:
            variable.assign(np.zeros(variable.shape, variable.dtype.as_numpy_dtype))


def _fit_interrupted(model: keras.Model) -> Outcome:
    """Interrupted after two of four epochs; all state is lost; then started again."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            backup = keras.callbacks.BackupAndRestore(folder)
            default_fit(model, epochs=4, callbacks=[backup, _Interrupt()])
        except KeyboardInterrupt:
            _forget(model)
        outcome = default_fit(model, epochs=4, callbacks=[keras.callbacks.BackupAndRestore(folder)])
    outcome.history = {}
    return outcome


def _fit_uninterrupted(model: keras.Model) -> Outcome:
    outcome = default_fit(model, epochs=4)
    outcome.history = {}
    return outcome


class _Numbers(keras.callbacks.Callback):
    """Reads variables as plain numbers, and sets the learning rate from them."""

    def __init__(self):
        super().__init__()
        self.in_batches: list = []
        self.in_epochs: list = []

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        rate, updates = float(optimizer.learning_rate), int(optimizer.iterations)
        if updates % 2:
            optimizer.learning_rate = 0.9 * rate
        else:
            optimizer.learning_rate.assign(0.8 * rate)
        self.in_batches.append([rate, updates, float(optimizer.learning_rate)])

    def on_epoch_end(self, epoch, logs=None):
        totals = [v for metric in self.model.metrics for v in metric.variables]
        self.in_epochs.append([float(total) for total in totals])
        self.in_epochs[-1] += [np.asarray(total).item() for total in totals]
        self.in_epochs[-1] += [float(np.sum(np.asarray(w.value))) for w in self.model.weights]


def _fit_numbers(model: keras.Model) -> Outcome:
    numbers = _Numbers()
    outcome = default_fit(model, samples=67, callbacks=[numbers])
    outcome.extra["in_batches"] = np.array(numbers.in_batches)
    outcome.extra["in_epochs"] = np.array(numbers.in_epochs) / 67
    return outcome


FEATURES = [
    Feature("a callback that reads and sets numbers", _ADAM, _fit_numbers),
    Feature("ReduceLROnPlateau", _ADAM, _fit_plateau),
    Feature("LearningRateScheduler", _ADAM, _fit_scheduler),
    Feature("EarlyStopping, restoring the best", _ADAM, _fit_early_stopping),
    Feature("ModelCheckpoint", _ADAM, _fit_checkpoints),
    Feature("Keras' guide to several devices", _classifier_of_the_guide, _fit_as_in_the_guide),
    Feature(
        "BackupAndRestore after an interruption",
        _ADAM,
        _fit_interrupted,
        reference_fit=_fit_uninterrupted,
    ),
    Feature(
        "BackupAndRestore in the middle of an accumulation",
        classifier(),
        _fit_interrupted,
        options={"accumulation_steps": 3},
        reference_build=classifier(lambda: optimizers.SGD(0.1, gradient_accumulation_steps=3)),
        reference_fit=_fit_uninterrupted,
        note="8 of the 16 micro-batches, 3 per update, run before the interruption",
    ),
]
