"""Puts whole files, and one decision of several processes, into `fit`, saving and loading."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from tfdist import _compat
from tfdist.coordination import digest, meeting, runs, single_batches
from tfdist.coordination.agreement import (
    all_variables,
    broadcast_variables,
    check_equal,
    combined_checksum,
    replica_states,
)
from tfdist.coordination.callbacks import coordinate
from tfdist.coordination.files import protect, restored, whole_file
from tfdist.coordination.saving import write_together


def install(strategy_class: Any) -> None:
    """Installs the hooks for models of strategies of `strategy_class`; others are left alone."""

    def strategy_of(model: Any) -> Any:
        strategy = getattr(model, "distribute_strategy", None)
        return strategy if isinstance(strategy, strategy_class) else None

    def around_run(
        model: keras.Model, name: str, arguments: Mapping[str, Any]
    ) -> contextlib.AbstractContextManager:
        strategy = strategy_of(model)
        if strategy is None:
            return contextlib.nullcontext()
        if not strategy.is_multi_process:
            return restored(strategy)
        return runs.coordinated(strategy, functools.partial(_agree, model, name, arguments))

    def before_callbacks(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> bool:
        strategy = strategy_of(model)
        if strategy is None:
            return False
        (coordinate if strategy.is_multi_process else protect)(strategy, callbacks)
        return strategy.is_multi_process

    def save(model: keras.Model, path: Any, write: Callable[[Any], Any]) -> Any:
        strategy = strategy_of(model)
        if strategy is None:
            return write(path)

        def write_whole() -> Any:
            with whole_file(path, _size(model)) as partial:
                return write(partial)

        return _save(strategy, model, write_whole) if strategy.is_multi_process else write_whole()

    def load(model: keras.Model, read: Callable[[], None]) -> None:
        strategy = strategy_of(model)
        if strategy is not None and strategy.is_multi_process:
            _load(strategy, model, read)
        else:
            read()

    def before_single_batch(model: keras.Model, name: str, arguments: Mapping[str, Any]) -> None:
        strategy = strategy_of(model)
        if strategy is not None and strategy.is_multi_process and not strategy.callbacks_run:
            single_batches.agree(model, name, arguments)

    _compat.hook_runs(around_run)
    _compat.hook_single_batches(before_single_batch)
    _compat.hook_callbacks(before_callbacks)
    _compat.hook_saving(save)
    _compat.hook_load_weights(load)


def _agree(model: keras.Model, name: str, arguments: Mapping[str, Any]) -> None:
    """Raises ValueError in all processes, where they are about to run different things."""
    strategy = model.distribute_strategy
    facts = {key: value for key, value in arguments.items() if key not in ("self", "kwargs")}
    run = digest.of_run(model, name, facts)
    # `fit` compares the weights, and more, when its callbacks have begun.
    weights = 0 if name == "fit" else combined_checksum(strategy, model.variables)
    check_equal(meeting.meet(strategy.processes, f"begins `{name}`", run, number=weights))
    digest.note_compared(model)


def _size(model: keras.Model) -> int:
    """About how many bytes a file of `model` has: the values, and what HDF5 notes about them."""
    variables = all_variables(model)
    return sum(2048 + int(np.prod(v.shape)) * v.dtype.size for v in variables)


def _save(strategy: Any, model: keras.Model, write: Callable[[], Any]) -> Any:
    """Writes in the chief; the others give it what only they have."""
    states = [state for state in replica_states(model) if state.has_rows()]
    if not all(state.is_held for state in states):
        return write_together(strategy.processes, states, write)
    return write() if strategy.is_chief else None


def _load(strategy: Any, model: keras.Model, read: Callable[[], None]) -> None:
    """Reads in the chief, whose file counts, and gives the others what it read.

    While callbacks run nothing is sent: what they change is agreed on after them.

    Raises:
        RuntimeError: in the other processes, when the chief could not read.
    """
    error: Exception | None = None
    if not strategy.callbacks_run:
        meeting.meet(strategy.processes, "loads weights", {})
    if strategy.is_chief:
        try:
            read()
        except Exception as caught:
            error = caught
    if strategy.callbacks_run:
        if error:
            raise error
        return
    runs.raise_everywhere(strategy.processes, error, "load the weights")
    broadcast_variables(strategy, all_variables(model), root=0)
    for state in replica_states(model):
        state.share()
