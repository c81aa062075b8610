"""Hooks in `fit`, saving and loading: whole files, and one decision of several processes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from tfdist import compat
from tfdist.elastic.processes import LostSourceError
from tfdist.processes import digest, meeting, reads, runs, single_batches
from tfdist.processes.agreement import check_equal, combined_checksum
from tfdist.processes.callback_kinds import refuse_swaps
from tfdist.processes.callbacks import coordinate
from tfdist.processes.contracts import Coordinated
from tfdist.processes.files import protect
from tfdist.processes.saving import write_together
from tfdist.processes.shared_variables import (
    all_variables,
    broadcast_variables,
    replica_states,
    share_read,
    share_variables,
)
from tfdist.processes.whole_files import whole_file
from tfdist.step.sharding import saved_weights

_TRAINING = ("fit", "train_on_batch")
_H5 = (".h5", ".hdf5")
_NO_H5 = (
    "With `sharding` a whole model in .h5 would have one replica's parts of the optimizer's state. "
    "Save the model as .keras, or its weights with `save_weights` as .weights.h5."
)


def install(strategy_class: type) -> None:
    """Installs the hooks for models of `strategy_class` strategies; other models are unaffected."""

    def strategy_of(model: keras.Model) -> Any:
        strategy = getattr(model, "distribute_strategy", None)
        return strategy if isinstance(strategy, strategy_class) else None

    def around_run(
        model: keras.Model, name: str, arguments: Mapping[str, Any]
    ) -> contextlib.AbstractContextManager:
        strategy = strategy_of(model)
        if strategy is None:
            return contextlib.nullcontext()
        strategy.finish_rounds()
        if not strategy.is_multi_process:
            return runs.alone(strategy)
        if strategy.callbacks_run:
            _share_loaded(strategy, model, name)
        strategy.prepare_run(model)
        return runs.coordinated(strategy, functools.partial(agree, model, name, arguments))

    def before_callbacks(callbacks: keras.callbacks.CallbackList, model: keras.Model) -> bool:
        strategy = strategy_of(model)
        if strategy is None:
            return False
        sharding = strategy.options.sharded(strategy.num_replicas_in_sync)
        refuse_swaps(sharding, callbacks.callbacks)
        _refuse_h5(sharding, callbacks.callbacks)
        first, last = strategy.callbacks_around_others(callbacks.callbacks)
        more = strategy.callbacks_of_runs()
        _replace(callbacks.callbacks, more)
        _take_out(callbacks.callbacks, [*first, *last])
        (coordinate if strategy.is_multi_process else protect)(strategy, callbacks)
        callbacks.callbacks[:] = [*first, *callbacks.callbacks, *last]
        return strategy.is_multi_process or bool(more or first or last)

    def save(model: keras.Model, path: Any, write: Callable[[Any], Any]) -> Any:
        strategy = strategy_of(model)
        if strategy is None:
            return write(path)
        if not strategy.is_multi_process:
            strategy.finish_rounds()

        def write_whole() -> Any:
            # An archive of large variables is made from a temporary file of the same size.
            twice = str(path).endswith(".keras") and any(map(compat.is_large, model.variables))
            size = _size(model) * (2 if twice else 1)
            with whole_file(path, size) as partial, saved_weights.at_hand(model):
                return write(partial)

        return _save(strategy, model, write_whole) if strategy.is_multi_process else write_whole()

    def load(model: keras.Model, read: Callable[[], None]) -> None:
        strategy = strategy_of(model)
        if strategy is not None and strategy.is_multi_process:
            _load(strategy, model, read)
        elif strategy is not None:
            strategy.finish_rounds()
            with compat.reading_rows(strategy):
                read()
        else:
            read()

    def before_single_batch(model: keras.Model, name: str, arguments: Mapping[str, Any]) -> None:
        strategy = strategy_of(model)
        if strategy is None:
            return
        strategy.finish_rounds()
        if not strategy.is_multi_process:
            return
        if strategy.callbacks_run:
            _share_loaded(strategy, model, name)
        strategy.prepare_run(model)
        if not strategy.callbacks_run:
            single_batches.agree(model, name, arguments)

    compat.hook_runs(around_run)
    compat.hook_single_batches(before_single_batch)
    compat.hook_callbacks(before_callbacks)
    compat.hook_saving(save, _check_for_h5, _check_state_tree)
    compat.hook_load_weights(load)


def agree(model: keras.Model, name: str, arguments: Mapping[str, Any]) -> None:
    """Called by all processes before `fit`, `evaluate` or `predict`.

    Args:
        model: the model.
        name: of the method.
        arguments: those of the method, by their names.

    Raises:
        ValueError: in all processes, if they are about to run different things.
        RuntimeError: in all processes, if their weights differ.
    """
    strategy = model.distribute_strategy
    facts = {key: value for key, value in arguments.items() if key not in ("self", "kwargs")}
    run = digest.of_run(model, name, facts)
    # `fit` compares the weights, and more, when its callbacks have begun.
    weights = 0 if name == "fit" else combined_checksum(strategy, model.variables)
    found = meeting.meet(strategy.processes, f"begins `{name}`", run, number=weights)
    if not strategy.make_equal(model):
        check_equal(found)
    digest.note_compared(model)


def _replace(callbacks: list, more: list[keras.callbacks.Callback]) -> None:
    """Appends `more` in place of such callbacks: a list may be given a model again, or another."""
    _take_out(callbacks, more)
    callbacks += more


def _take_out(callbacks: list, like: list[keras.callbacks.Callback]) -> None:
    """Removes callbacks of the same kinds as those of `like`."""
    kinds = {type(callback) for callback in like}
    callbacks[:] = [callback for callback in callbacks if type(callback) not in kinds]


def _check_for_h5(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError for an optimizer of whose variables each replica has parts only."""
    if _is_in_parts(optimizer):
        raise ValueError(f"{_NO_H5} Received: {optimizer.name} in such a file")


def _check_state_tree(model: keras.Model, name: str) -> None:
    """Raises ValueError for a model of whose optimizer's state each replica has parts only."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and _is_in_parts(optimizer):
        raise ValueError(
            "With `sharding` a state tree would have one replica's parts of the optimizer's state. "
            "Take `model.save` or `save_weights`, whose files have whole variables, or "
            "`get_weights` and `set_weights`. "
            f"Received: {name} of {model.name}, whose {optimizer.name} is sharded"
        )


def _is_in_parts(optimizer: keras.optimizers.Optimizer) -> bool:
    parts = getattr(optimizer, "parts_of_state", None)
    return parts is not None and parts.has_rows()


def _refuse_h5(sharding: str | None, callbacks: list[keras.callbacks.Callback]) -> None:
    """Raises ValueError for callbacks that would write files .h5 in sharded training."""
    for callback in callbacks if sharding else ():
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            path = str(callback.filepath)
            if path.endswith(_H5) and not callback.save_weights_only:
                raise ValueError(f"{_NO_H5} Received: a ModelCheckpoint of {path}")


def _size(model: keras.Model) -> int:
    """The approximate bytes of a file of `model`: the values, and HDF5's notes about them."""
    values = [int(np.prod(v.shape)) * v.dtype.size for v in all_variables(model)]
    values += [size for state in replica_states(model) for size in state.sizes()]
    return sum(2048 + size for size in values)


def _save(strategy: Coordinated, model: keras.Model, write: Callable[[], Any]) -> Any:
    """Writes in the chief; the other processes send it the state that only they have."""
    states = [state for state in replica_states(model) if state.has_rows()]
    if not all(state.is_held for state in states):
        strategy.finish_rounds()
        return write_together(strategy.processes, states, write)
    return write() if strategy.is_chief else None


def _load(strategy: Coordinated, model: keras.Model, read: Callable[[], None]) -> None:
    """Reads in the chief, whose file counts, and sends the result to the other processes.

    While callbacks run, nothing is sent: the processes agree on all changes after the callbacks, or
    when all run the model. Weights in parts are sent also when all processes read them.

    Raises:
        RuntimeError: in the other processes, when the chief could not read.
    """
    if strategy.callbacks_run:
        reads.note(model)
        if strategy.processes.is_chief:
            with saved_weights.reading(model):
                read()
        return
    strategy.finish_rounds()
    while not _loaded(strategy, model, read):
        pass


def _share_loaded(strategy: Coordinated, model: keras.Model, name: str) -> None:
    """In a callback, before all run `model`: gives them the weights that rank 0 has read.

    Args:
        strategy: the strategy.
        model: the model that is about to run.
        name: of the method that runs it.
    """
    states = replica_states(model)
    is_new = reads.is_noted(model) or any(state.is_new for state in states)
    doing = f"begins `{name}` in a callback"
    if not any(meeting.meet(strategy.processes, doing, {}, number=int(is_new))):
        return
    reads.forget(model)
    if name in _TRAINING:
        share_read(model, strategy)
        return
    share_variables(model, strategy, root=0)
    weights = saved_weights.weights_in_parts(model)
    if weights is not None:
        weights.share_weights()


def _loaded(strategy: Coordinated, model: keras.Model, read: Callable[[], None]) -> bool:
    """Loads together; returns whether the processes are still those that began with it."""
    error: Exception | None = None
    meeting.meet(strategy.processes, "loads weights", {})
    before = strategy.processes.membership
    if strategy.processes.is_chief:
        try:
            with saved_weights.reading(model):
                read()
        except Exception as caught:
            error = caught
    runs.raise_everywhere(strategy.processes, error, "load the weights")
    try:
        broadcast_variables(strategy, all_variables(model), root=0)
        for state in replica_states(model):
            state.share()
    except LostSourceError:
        return False
    strategy.loaded(model)
    return strategy.processes.membership == before
