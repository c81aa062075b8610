"""What the two callbacks share that run before and after the user's callbacks in every process."""

from __future__ import annotations

import zlib

import keras
import numpy as np

from tfdist.processes import runs
from tfdist.processes.agreement import Agreements
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
from tfdist.processes.shared_variables import all_variables, rates, replica_states
from tfdist.processes.succession import LastSaved, Succession

# The processes agree on what callbacks did after each of these methods.
_PHASES = ("on_train_begin", "on_epoch_begin", "on_epoch_end", "on_train_end")


class Shared:
    """State that the first and the last callback share.

    Args:
        strategy: the strategy.
        running: Keras' list of the callbacks of this run.
        callbacks: those of the user and of Keras that run in this process.
        progress: those that show progress, if this process does not.

    Attributes:
        ends: the first and the last callback.
    """

    def __init__(
        self,
        strategy: Coordinated,
        running: list[keras.callbacks.Callback],
        callbacks: list[keras.callbacks.Callback],
        progress: list[keras.callbacks.Callback],
    ):
        self.strategy = strategy
        self.callbacks = callbacks
        self._running = running
        self._progress = progress
        self._is_chief = strategy.is_chief
        self.ends: list[keras.callbacks.Callback] = []
        self.questions = runs.Questions(strategy.everyone)
        self.files = CallbackFiles(callbacks, strategy.is_chief)
        self.saved = LastSaved(callbacks)
        strategy.callback_files.append(self.files)
        self.asks_each_batch = False
        self.asks_each_test_batch = False
        self.asks_each_predict_batch = False
        self.may_save_alone: frozenset[str] = frozenset()
        self.training = False
        self.whole: Agreements
        self.in_batches: Agreements

    def show(self, callbacks: list[keras.callbacks.Callback]) -> None:
        """Lets Keras run `callbacks` between the first and the last one.

        What the strategy has put around these two stays where it is.
        """
        first, last = self.ends
        shown = [first, *callbacks, last]
        if first in self._running:
            place = slice(self._running.index(first), self._running.index(last) + 1)
            self._running[place] = shown
        else:
            self._running[:] = shown

    def succeed(self, params: dict, model: keras.Model, epoch: int | None) -> None:
        """Takes over the files and the progress of rank 0, if this process has become rank 0."""
        if self._is_chief or not self.strategy.is_chief:
            return
        self._is_chief = True
        succession = Succession(self.callbacks, self._progress, self.files)
        self.files, callbacks = succession.happen(params, model, epoch)
        self.strategy.callback_files.append(self.files)
        self.show(callbacks)
        if all(state.can_be_saved_alone for state in replica_states(model)):
            self.saved.save_again()

    def recover(self) -> None:
        """Repairs the chief's backups; all processes raise an error if that fails."""
        error: Exception | None = None
        try:
            self.files.recover()
        except Exception as caught:
            error = caught
        runs.raise_everywhere(self.strategy.everyone, error, "go on from a backup")

    def start(self, model: keras.Model) -> None:
        """Begins training; if callbacks of one process look into batches, all processes do."""
        self.training = True
        self.strategy.trains_with(self.callbacks)
        self.whole = Agreements(self.strategy.agreements(model, all_variables))
        self.in_batches = Agreements(self.strategy.agreements(model, rates))
        looks = any(acts_in_batches(callback) for callback in self.callbacks)
        saves = [any(may_save_alone(c, phase) for c in self.callbacks) for phase in _PHASES]
        savers = [callback for callback in self.callbacks if isinstance(callback, SAVING)]
        names = " ".join(type(callback).__name__ for callback in savers)
        in_batches = any(callback.save_freq not in ("epoch", False) for callback in savers)
        counts = [sum(isinstance(callback, kind) for callback in savers) for kind in SAVING]
        row = [int(looks), zlib.crc32(names.encode()), int(in_batches), *counts, *map(int, saves)]
        rows = self.strategy.everyone.all_gather(row)
        check_chief_saves(rows[:, 3 : 3 + len(SAVING)])
        self.asks_each_batch = bool(rows[:, 0].any())
        differ = len(set(rows[:, 1])) > 1
        if differ and rows[:, 2].any() and replica_states(model):
            raise ValueError(
                "With `accumulation_steps` above 1, compression, `local` or `sharding`, each rank "
                "has something to save. A ModelCheckpoint or BackupAndRestore that saves in the "
                "middle of an epoch must be in the callbacks of all ranks; or let it save at the "
                "end of epochs. "
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
