"""Puts coordination into Keras' `fit`, callbacks, saving and loading under several processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras

from tfdist import _compat
from tfdist.coordination import runs
from tfdist.coordination.agreement import (
    accumulators,
    all_variables,
    broadcast_variables,
    compression_states,
)
from tfdist.coordination.callbacks import coordinate
from tfdist.coordination.files import whole_file


def install(strategy_class: Any) -> None:
    """Installs the hooks for models of strategies of `strategy_class`; others are left alone."""

    def strategy_of(model: Any) -> Any:
        """The model's strategy, where it has several processes."""
        strategy = getattr(model, "distribute_strategy", None)
        ours = isinstance(strategy, strategy_class) and strategy.processes.size > 1
        return strategy if ours else None

    def around_run(model: keras.Model, name: str) -> contextlib.AbstractContextManager:
        strategy = strategy_of(model)
        return runs.coordinated(strategy) if strategy else contextlib.nullcontext()

    def before_callbacks(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> bool:
        strategy = strategy_of(model)
        if strategy:
            coordinate(strategy, callbacks)
        return bool(strategy)

    def save(model: keras.Model, path: Any, write: Callable[[Any], Any]) -> Any:
        strategy = strategy_of(model)
        return _save(strategy, model, path, write) if strategy else write(path)

    def load(model: keras.Model, read: Callable[[], None]) -> None:
        strategy = strategy_of(model)
        if strategy:
            _load(strategy, model, read)
        else:
            read()

    _compat.hook_runs(around_run)
    _compat.hook_callbacks(before_callbacks)
    _compat.hook_saving(save)
    _compat.hook_load_weights(load)


def _save(strategy: Any, model: keras.Model, path: Any, write: Callable[[Any], Any]) -> Any:
    """Writes in the chief; the others give it what only they have."""
    for accumulator in accumulators(model):
        accumulator.spread()
    for state in compression_states(model):
        state.collect()
    if not strategy.is_chief:
        return None
    with whole_file(path) as partial:
        return write(partial)


def _load(strategy: Any, model: keras.Model, read: Callable[[], None]) -> None:
    """Reads in the chief, whose file counts, and gives the others what it read.

    While callbacks run nothing is sent: what they change is agreed on after them.

    Raises:
        RuntimeError: in the other processes, when the chief could not read.
    """
    error: Exception | None = None
    if strategy.is_chief:
        try:
            read()
        except Exception as caught:
            error = caught
    if strategy.callbacks_run:
        if error:
            raise error
        return
    (message, *_) = strategy.processes.all_gather_texts(str(error or ""))
    if error:
        raise error
    if message:
        raise RuntimeError(f"Rank 0 could not load the weights. Its error was: {message}")
    broadcast_variables(strategy, all_variables(model), root=0)
    for accumulator in accumulators(model):
        accumulator.note_spread()
    for state in compression_states(model):
        state.share(root=0)
