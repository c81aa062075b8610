"""Puts the asynchronous functions into Keras' `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import contextlib
from typing import Any

import keras

from tfdist import compat
from tfdist.parameter_server.chief.training import TrainFunction


class Epochs(keras.callbacks.Callback):
    """Tells the train function which epoch it is, how many batches it has, and when it ends."""

    @property
    def _function(self) -> TrainFunction:
        return self.model.train_function

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins with the data anew."""
        self._function.close()
        self._function.epoch = epoch
        self._function.batches = self.params["steps"]

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Leaves what was not waited for, when training was stopped in the middle."""
        self._function.close()


def install(strategy_class: Any) -> None:
    """Installs the hooks for models of strategies of `strategy_class`; others are left alone."""

    def strategy_of(model: Any) -> Any:
        strategy = getattr(model, "distribute_strategy", None)
        return strategy if isinstance(strategy, strategy_class) else None

    def around_run(
        model: keras.Model, name: str, arguments: Any
    ) -> contextlib.AbstractContextManager:
        strategy = strategy_of(model)
        return strategy.keras_run(model, name) if strategy else contextlib.nullcontext()

    def before_callbacks(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> bool:
        training = strategy_of(model) and isinstance(model.train_function, TrainFunction)
        if training and not any(isinstance(c, Epochs) for c in callbacks.callbacks):
            callbacks.callbacks.insert(0, Epochs())
        return bool(training)

    compat.hook_runs(around_run)
    compat.hook_callbacks(before_callbacks)
