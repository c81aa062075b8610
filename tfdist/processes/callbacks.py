"""The two callbacks that run before and after the user's callbacks in every process."""

from __future__ import annotations

import zlib

import keras
import numpy as np

from tfdist.processes import meeting, runs
from tfdist.processes.agreement import Agreement, all_variables, rates, replica_states
from tfdist.processes.callback_kinds import (
    PASSIVE,
    SAVING,
    acts_in_batches,
    check_chief_saves,
    defines,
    may_save_alone,
)
from tfdist.processes.contracts import Coordinated
from tfdist.processes.files import CallbackFiles

# The processes agree on what callbacks did after each of these methods.
_PHASES = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")


def coordinate(strategy: Coordinated, callback_list: keras.callbacks.CallbackList) -> None:
    """Puts the two callbacks around the callbacks of the list; only the chief shows progress.

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
    callbacks[:] = [First(shared), *shared.files.with_commits(), Last(shared)]


class _Shared:
    """State that the first and the last callback share."""

    def __init__(self, strategy: Coordinated, callbacks: list[keras.callbacks.Callback]):
        self.strategy = strategy
        self.callbacks = callbacks
        self.questions = runs.Questions(strategy.processes)
        self.files = CallbackFiles(callbacks, strategy.is_chief)
        strategy.callback_files.append(self.files)
        self.asks_each_batch = False
        self.may_save_alone: frozenset[str] = frozenset()
        self.training = False
        self.whole: Agreement
        self.in_batches: Agreement

    def recover(self) -> None:
        """Repairs the chief's backups; all processes raise an error if that fails."""
        error: Exception | None = None
        try:
            self.files.recover()
        except Exception as caught:
            error = caught
        runs.raise_everywhere(self.strategy.processes, error, "go on from a backup")

    def start(self, model: keras.Model) -> None:
        """Begins training; if callbacks of one process look into batches, all processes do."""
        self.training = True
        self.whole = Agreement(model, self.strategy, all_variables)
        self.in_batches = Agreement(model, self.strategy, rates)
        looks = any(acts_in_batches(callback) for callback in self.callbacks)
        saves = [any(may_save_alone(c, phase) for c in self.callbacks) for phase in _PHASES]
        savers = [callback for callback in self.callbacks if isinstance(callback, SAVING)]
        names = " ".join(type(callback).__name__ for callback in savers)
        in_batches = any(callback.save_freq not in ("epoch", False) for callback in savers)
        counts = [sum(isinstance(callback, kind) for callback in savers) for kind in SAVING]
        row = [int(looks), zlib.crc32(names.encode()), int(in_batches), *counts, *map(int, saves)]
        rows = self.strategy.processes.all_gather(row)
        check_chief_saves(rows[:, 3 : 3 + len(SAVING)])
        self.asks_each_batch = bool(rows[:, 0].any())
        differ = len(set(rows[:, 1])) > 1
        if differ and rows[:, 2].any() and replica_states(model):
            raise ValueError(
                "With `accumulation_steps` above 1 or compression, each rank has something to "
                "save. A ModelCheckpoint or BackupAndRestore that saves in the middle of an epoch "
                "must be in the callbacks of all ranks; or let it save at the end of epochs. "
                f"Received by rank, whether one saves in batches: {rows[:, 2].tolist()}; here "
                f"{names or 'no such callback'}"
            )
        alone = dict(zip(_PHASES, np.any(rows[:, 3 + len(SAVING) :], axis=0).tolist()))
        alone["on_epoch_end"] |= differ
        self.may_save_alone = frozenset(phase for phase in _PHASES if alone[phase])

    def may_change_variables(self, phase: str) -> bool:
        """Whether a callback of this process may change variables in a phase of an epoch."""
        return any(
            getattr(callback, "changes_variables", True) and defines(callback, phase, PASSIVE)
            for callback in self.callbacks
        )


class First(keras.callbacks.Callback):
    """Runs before the user's callbacks and notes the state that they find."""

    def __init__(self, shared: _Shared):
        super().__init__()
        self._shared = shared
        self._compared = False

    def _begin(self, phase: str) -> None:
        shared = self._shared
        saves_alone = phase in shared.may_save_alone
        shared.strategy.on_demand.begin(replica_states(self.model) if saves_alone else [])
        shared.strategy.callbacks_run = True
        shared.whole.begin(
            # At the beginning and end of training Keras itself may change variables.
            acts=not phase.startswith("on_epoch") or shared.may_change_variables(phase),
            trained=phase != "on_epoch_begin",
        )

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Repairs the backups of a killed process, and begins to watch."""
        optimizer = self.model.optimizer
        variables = self.model.trainable_variables
        if optimizer is not None and not optimizer.built and variables:
            with self._shared.strategy.scope():
                optimizer.build(variables)
        self._check_params()
        self._shared.start(self.model)
        self._shared.recover()
        self._begin("on_train_begin")

    def _check_params(self) -> None:
        """Raises ValueError if the processes were asked for different numbers of steps."""
        params = self.params or {}
        facts = {name: params.get(name) for name in ("steps", "epochs")}
        meeting.meet(self._shared.strategy.processes, "begins to train or evaluate", facts)

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Checks the number of steps; the time of validation steps is measured anew."""
        if not self._shared.training:
            self._check_params()
        self._shared.questions.start_again()

    def on_predict_begin(self, logs: dict | None = None) -> None:
        """Checks the number of steps."""
        self._check_params()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch and the state."""
        self._shared.files.begin_epoch(epoch)
        self._shared.questions.start_again()
        self._begin("on_epoch_begin")

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere after Ctrl-C in one process; compares the processes' data."""
        is_time = self._shared.questions.ask_now_and_then()
        if batch > 0 and (is_time or not self._compared):
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
        """Compares the processes' data, and notes the state."""
        self._compare_data()
        self._begin("on_epoch_end")

    def _compare_data(self) -> None:
        self._compared = True
        self._shared.strategy.data.compare()

    def on_test_end(self, logs: dict | None = None) -> None:
        """Compares the processes' data; in training, the end of the epoch does so instead."""
        if not self._shared.training:
            self._compare_data()

    def on_predict_end(self, logs: dict | None = None) -> None:
        """Compares the processes' data."""
        self._compare_data()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Lets the chief's callbacks clean up their files."""
        if self._shared.strategy.is_chief:
            self._shared.files.end_training()
        self._begin("on_train_end")


class Last(keras.callbacks.Callback):
    """Runs after the user's callbacks and turns the processes' decisions into one."""

    def __init__(self, shared: _Shared):
        super().__init__()
        self._shared = shared

    def _end(self) -> None:
        self._shared.strategy.callbacks_run = False
        self._shared.strategy.on_demand.end()
        for state in replica_states(self.model):
            state.release()
        self._shared.whole.end()

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Adopts what one process restored."""
        self._end()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Adopts what one process changed."""
        self._end()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops everywhere when one process stops."""
        if self._shared.asks_each_batch:
            self._shared.in_batches.end()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Adopts what one process changed or decided."""
        self._end()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Adopts what one process restored."""
        self._end()
        for state in replica_states(self.model):
            state.end_training()
        self._shared.training = False
        self._shared.files.restore()
