"""Puts the asynchronous functions into Keras' `fit`, `evaluate` and `predict`."""

from __future__ import annotations

import contextlib

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.chief.evaluating import TestFunction
from tfdist.parameter_server.chief.keras_function import KerasFunction
from tfdist.parameter_server.chief.predicting import PredictFunction
from tfdist.parameter_server.chief.scheduler import WorkersLostError
from tfdist.parameter_server.chief.training import TrainFunction
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.own_updates.train_function import LeavingTrainFunction

_FUNCTIONS: dict[str, tuple[str, type[TrainFunction | TestFunction | PredictFunction]]] = {
    "fit": ("train_function", LeavingTrainFunction),
    "evaluate": ("test_function", TestFunction),
    "predict": ("predict_function", PredictFunction),
}


def function_for(strategy: ChiefStrategy, model: keras.Model, name: str) -> KerasFunction:
    """The function that `fit`, `evaluate` or `predict` (`name` says which) calls for its batches.

    If the model already has a function, Keras keeps that function.
    """
    attribute, kind = _FUNCTIONS[name]
    function = getattr(model, attribute)
    if not isinstance(function, kind):
        function = kind(strategy, model)
        setattr(model, attribute, function)
    return function


class Epochs(keras.callbacks.Callback):
    """Tells the train function which epoch it is, how many batches it has, and when it ends.

    Args:
        callbacks: the callbacks of the `fit`.
    """

    def __init__(self, callbacks: keras.callbacks.CallbackList):
        super().__init__()
        self._callbacks = callbacks

    @property
    def _function(self) -> TrainFunction:
        return self.model.train_function

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Shows the train function the callbacks."""
        self._function.begin_fit([c for c in self._callbacks.callbacks if c is not self])

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins the data anew."""
        self._function.begin_epoch(epoch, self.params["steps"])

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Drops unfinished work, when training was stopped in the middle of an epoch."""
        self._function.close()


def install(strategy_class: type[ChiefStrategy]) -> None:
    """Installs the hooks for models of strategies of `strategy_class`; others are left alone."""

    def strategy_of(model: keras.Model) -> ChiefStrategy | None:
        strategy = getattr(model, "distribute_strategy", None)
        return strategy if isinstance(strategy, strategy_class) else None

    def around_run(
        model: keras.Model, name: str, arguments: object
    ) -> contextlib.AbstractContextManager:
        strategy = strategy_of(model)
        return strategy.keras_run(model, name) if strategy else contextlib.nullcontext()

    def before_callbacks(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> bool:
        training = strategy_of(model) and isinstance(model.train_function, TrainFunction)
        if training and not any(isinstance(c, Epochs) for c in callbacks.callbacks):
            callbacks.callbacks.insert(0, Epochs(callbacks))
        return bool(training)

    def again(model: keras.Model, name: str, data: object, error: Exception) -> bool:
        strategy = strategy_of(model)
        lost = isinstance(error, (tf.errors.OpError, WorkersLostError))
        if strategy is None or not lost or not strategy.snapshots.can_restore:
            return False
        if hasattr(data, "__next__"):  # the data have no beginning any more
            return False
        function_for(strategy, model, name).close()
        strategy.snapshots.restore(error)
        return True

    compat.hook_repeats(again)
    compat.hook_runs(around_run)
    compat.hook_callbacks(before_callbacks)
