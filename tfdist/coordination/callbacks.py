"""The two callbacks that stand before and after the user's in every process."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfdist.coordination import runs
from tfdist.coordination.agreement import (
    Agreement,
    accumulators,
    all_variables,
    compression_states,
    learning_rates,
)
from tfdist.coordination.files import CallbackFiles

# Keras' callbacks that neither decide nor change anything at the end of a batch, as a rule.
_PASSIVE = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.History,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.TensorBoard,
)


def coordinate(strategy: Any, callback_list: keras.callbacks.CallbackList) -> None:
    """Puts the two callbacks around those of the list; progress is shown by the chief only.

    Args:
        strategy: the strategy of several processes.
        callback_list: the callbacks of one `fit`, `evaluate` or `predict`.
    """
    callbacks = callback_list.callbacks
    if callbacks and isinstance(callbacks[0], First):
        return
    if not (strategy.is_chief or strategy.log_all_ranks):
        callbacks[:] = [c for c in callbacks if not isinstance(c, keras.callbacks.ProgbarLogger)]
    shared = _Shared(strategy, list(callbacks))
    if not (strategy.is_chief or strategy.log_all_ranks):
        shared.files.silence()
    callbacks[:] = [First(shared), *callbacks, Last(shared)]


class _Shared:
    """What the first and the last callback know in common."""

    def __init__(self, strategy: Any, callbacks: list[keras.callbacks.Callback]):
        self.strategy = strategy
        self.callbacks = callbacks
        self.questions = runs.Questions(strategy.processes)
        self.files = CallbackFiles(callbacks, strategy.is_chief)
        strategy.callback_files.append(self.files)
        self.asks_each_batch = False
        self.may_save_alone = False
        self.training = False
        self.whole: Agreement
        self.in_batches: Agreement

    def start(self, model: keras.Model) -> None:
        """Begins a training; all processes look into every batch if the callbacks of one do."""
        self.training = True
        self.whole = Agreement(model, self.strategy, all_variables)
        self.in_batches = Agreement(model, self.strategy, learning_rates)
        looks = any(_acts_in_batches(callback) for callback in self.callbacks)
        saves = any(_may_save_alone(callback) for callback in self.callbacks)
        rows = self.strategy.processes.all_gather([int(looks), int(saves)])
        self.asks_each_batch, self.may_save_alone = rows.any(axis=0).tolist()


def _may_save_alone(callback: keras.callbacks.Callback) -> bool:
    """Whether `callback` may save the model in one process: Keras' own save in all of them."""
    known = type(callback).__module__.partition(".")[0] in ("keras", "tfdist")
    return not known or isinstance(callback, keras.callbacks.LambdaCallback)


def _acts_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether the processes must agree after each batch on what `callback` did.

    A callback that does the same in all of them may say so: `decides_in_batches = False`.
    """
    if not getattr(callback, "decides_in_batches", True):
        return False
    if _reads_logs_in_batches(callback):
        return True
    names = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
    harmless = (keras.callbacks.Callback, *_PASSIVE)
    own = [
        all(getattr(type(callback), name) is not getattr(c, name) for c in harmless)
        for name in names
    ]
    instance = [name in vars(callback) for name in names]
    return any(own) or any(instance)


def _reads_logs_in_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether one of Keras' callbacks decides by, or writes, metrics in the middle of an epoch."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return callback.save_best_only and callback.save_freq != "epoch"
    if isinstance(callback, keras.callbacks.TensorBoard):
        return callback.update_freq != "epoch"
    return False


class First(keras.callbacks.Callback):
    """Stands before the user's callbacks and notes the state that they find."""

    def __init__(self, shared: _Shared):
        super().__init__()
        self._shared = shared
        self._compared = False

    def _begin(self) -> None:
        for accumulator in accumulators(self.model):
            accumulator.spread()
        if self._shared.may_save_alone:
            for state in compression_states(self.model):
                state.hold()
        self._shared.strategy.callbacks_run = True
        self._shared.whole.begin()

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Mends what a killed process left, and starts to watch."""
        optimizer = self.model.optimizer
        variables = self.model.trainable_variables
        if optimizer is not None and not optimizer.built and variables:
            with self._shared.strategy.scope():
                optimizer.build(variables)
        self._check_params()
        self._shared.start(self.model)
        self._shared.files.recover()
        self._begin()

    def _check_params(self) -> None:
        """Raises ValueError where the processes were asked for different numbers of steps."""
        names = ("steps", "epochs")
        params = self.params or {}
        row = [-1 if params.get(name) is None else params[name] for name in names]
        rows = self._shared.strategy.processes.all_gather(row)
        if len(np.unique(rows, axis=0)) > 1:
            raise ValueError(
                "All processes must make the same number of steps and epochs: those of the global "
                "batches, or `steps_per_epoch`. Received by rank (-1 for none): "
                f"steps {rows[:, 0].tolist()}, epochs {rows[:, 1].tolist()}"
            )

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Checks what the processes were asked for; validation steps are timed anew."""
        if not self._shared.training:
            self._check_params()
        self._shared.questions.start_again()

    def on_predict_begin(self, logs: dict | None = None) -> None:
        """Checks what the processes were asked for."""
        self._check_params()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the state."""
        self._shared.questions.start_again()
        self._begin()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere after Ctrl-C in one process; compares the processes' data once."""
        self._shared.questions.ask_now_and_then()
        if batch > 0 and not self._compared:
            self._compare_data()

    def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere after Ctrl-C in one process."""
        self._shared.questions.ask_now_and_then()

    def on_predict_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere after Ctrl-C in one process."""
        self._shared.questions.ask_now_and_then()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Gives callbacks that look into batches the metrics of all processes."""
        if self._shared.asks_each_batch:
            results = self.model.get_metrics_result()
            if logs is not None:
                logs.update({name: float(results[name]) for name in logs if name in results})
            self._shared.in_batches.begin()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the state."""
        if not self._compared:
            self._compare_data()
        self._begin()

    def _compare_data(self) -> None:
        self._compared = True
        self._shared.strategy.compare_first_batches()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Lets the chief's callbacks clean up where they wrote."""
        if self._shared.strategy.is_chief:
            self._shared.files.restore()
        self._begin()


class Last(keras.callbacks.Callback):
    """Stands after the user's callbacks and makes one decision of all processes'."""

    def __init__(self, shared: _Shared):
        super().__init__()
        self._shared = shared

    def _end(self) -> None:
        self._shared.strategy.callbacks_run = False
        for state in compression_states(self.model):
            state.release()
        self._shared.whole.end()

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Adopts what one process restored; from now on backups become visible when whole."""
        self._end()
        self._shared.files.stage()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Adopts what one process changed."""
        self._end()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Completes backups; stops everywhere when one process stops."""
        self._shared.files.commit()
        if self._shared.asks_each_batch:
            self._shared.in_batches.end()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Completes backups and adopts what one process changed or decided."""
        self._shared.files.commit()
        self._end()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Adopts what one process restored."""
        self._end()
        self._shared.training = False
        self._shared.files.restore()
