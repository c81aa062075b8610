"""One decision for all processes: what a callback changes in one process, the others adopt."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.engines.processes import Processes
from tfdist.processes import reads
from tfdist.processes.contracts import Coordinated, WithReplicas
from tfdist.processes.own_parts import OwnParts, check_changes
from tfdist.processes.shared_variables import (
    broadcast_variables,
    checksum_of,
    replica_states,
    share_read,
)
from tfdist.step.replica_state import ReplicaState


class Agreement:
    """Watches what callbacks do to a model in this process, and makes all processes do the same.

    All processes call `begin` before the callbacks and `end` after them. If several processes
    changed something, the changes of the lowest rank count.

    Args:
        model: the model that is trained.
        strategy: the model's strategy, with several processes.
        variables: returns the variables that callbacks may change, the same in all processes.
        processes: those that agree; None for those of the strategy's replicas. Others agree on the
            variables and decisions only, not on what each replica has for itself.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Coordinated,
        variables: Callable[[keras.Model], list[tf.Variable]],
        processes: Processes | None = None,
    ):
        self._model = model
        self._strategy = strategy
        self._variables_of = variables
        self._processes = processes or strategy.processes
        self._owns = processes is None
        self._before: list[int] = []
        self._own_parts = OwnParts(self._states)
        self._acts = True
        self._has_begun = False

    def begin(self, acts: bool = True, trained: bool = True) -> None:
        """Notes the state before the callbacks.

        Args:
            acts: whether a callback of this process may change variables until `end`.
            trained: whether variables may have changed since `end`.
        """
        self._acts = acts
        if not self._has_begun and self._states() and not self._processes.may_change:
            # A file that all have read before must not look like one that a callback has read.
            self._share_read(self._processes.all_gather([int(self._has_news())])[:, 0].tolist())
        self._has_begun = True
        if trained or not self._before:
            self._before = self._checksums()
            self._own_parts.note()

    def end(self, restores: bool = False) -> None:
        """Makes weights, learning rate, next epoch and the decision to stop equal everywhere.

        Args:
            restores: whether a callback may have gone back to a backup that rank 0 has read.

        Raises:
            RuntimeError: when the processes' weights differ though no callback changed any; when
                the rank is lost that has read weights for the others.
        """
        reader = self._processes.source(0)
        restores = restores or (self._owns and reads.is_noted(self._model))
        read = reads.taken(but=self._model) if self._owns else []
        after = self._checksums() if self._acts else self._before
        changed = [int(a != b) for a, b in zip(after, self._before)]
        common = _combined(c for c, v in zip(after, self._variables()) if _is_common(v))
        row = [
            int(bool(self._model.stop_training)),
            compat.initial_epoch(self._model),
            int(any(changed)),
            common,
            int(self._has_news()),
            int(self._acts and self._own_parts.have_changed()),
            self._checksum_of_wholes(),
            len(read),
        ]
        rows = self._processes.all_gather(row)
        stops, epochs, changes, states, news, parts, wholes, reading = rows.T.tolist()
        _check_reader(restores and self._processes.source(0) != reader)
        check_changes(parts)
        if not any(news):
            check_equal(wholes)
        root = changes.index(1) if any(changes) else 0
        if not any(changes):
            check_equal(states)
        self._before = after
        if any(changes):
            self._adopt(changed, after)
            _check_reader(restores and self._processes.source(0) != reader)
        if len(set(reading)) == 1:  # else rank 0 alone has read them, for its own use
            for model in read:
                share_read(model, self._strategy)
        if any(news):
            self._share_read(news)
            if _set_to(self._model.variables):
                # What others have set meanwhile is not what the file has.
                check_equal(self._processes.all_gather([self._checksum_of_wholes()])[:, 0].tolist())
        if any(news) or any(parts):
            self._own_parts.note()
        compat.set_initial_epoch(self._model, epochs[root])
        self._model.stop_training = any(stops)

    def _adopt(self, changed: list[int], after: list[int]) -> None:
        """Sets the variables that any process changed to their values in the lowest of these."""
        count = len(changed)
        rows = self._processes.all_gather([*changed, *after])
        root = int(rows[:, :count].any(axis=1).argmax())
        is_changed = rows[:, :count].any(axis=0)
        differs = (rows[:, count:] != rows[root, count:]).any(axis=0)
        chosen = np.flatnonzero(is_changed & differs)
        variables = self._variables()
        own = [variables[index] for index in chosen]
        broadcast_variables(self._strategy, own, root, self._processes)
        self._before = np.where(is_changed, rows[root, count:], after).tolist()

    def _variables(self) -> list[tf.Variable]:
        return self._variables_of(self._model)

    def _states(self) -> list[ReplicaState]:
        return replica_states(self._model) if self._owns else []

    def _has_news(self) -> bool:
        """Whether this process has read a file of which the others may not know."""
        return any(state.is_new for state in self._states())

    def _share_read(self, news: Sequence[int]) -> None:
        """Makes all processes have what some have read; called by all.

        Args:
            news: by rank, whether the process has read a file.
        """
        for state in self._states() if any(news) else ():
            # If all processes have read the file, each has its own part already.
            state.settle() if all(news) else state.share()
        if any(news):
            self._strategy.loaded(self._model)

    def _checksum_of_wholes(self) -> int:
        return _combined(_set_to(self._model.variables))

    def _checksums(self) -> list[int]:
        return [checksum_of(self._strategy, variable) for variable in self._variables()]


class Agreements:
    """Agreements of several groups of processes, one after the other.

    Args:
        agreements: the agreements; each process is in all of them.
    """

    def __init__(self, agreements: Sequence[Agreement]):
        self._agreements = agreements

    def begin(self, acts: bool = True, trained: bool = True) -> None:
        """See `Agreement.begin`."""
        for agreement in self._agreements:
            agreement.begin(acts, trained)

    def end(self, restores: bool = False) -> None:
        """See `Agreement.end`."""
        for agreement in self._agreements:
            agreement.end(restores)


def _check_reader(is_lost: bool) -> None:
    if is_lost:
        raise RuntimeError(
            "Rank 0 was lost while it read weights for the others in a callback, such as a "
            "BackupAndRestore. Start the job again. Received: another first rank than before"
        )


def check_equal(states: Sequence[int]) -> None:
    """Raises RuntimeError unless the checksums of the processes' variables are equal."""
    if len(set(states)) > 1:
        raise RuntimeError(
            "The ranks' weights or optimizer states have become different, so they no longer "
            "train one model. Something sets variables in one rank only, or a layer draws "
            "random numbers of its own. With `local` a callback must not set variables by the "
            "weights in the middle of an epoch, as each rank has its own weights there. "
            f"Received: checksums {[f'{state:08x}' for state in states]} by rank"
        )


def combined_checksum(strategy: WithReplicas, variables: Sequence[keras.Variable]) -> int:
    """A checksum of those of `variables` that must be equal in all processes."""
    found = [variable.value for variable in variables if not compat.is_sharded(variable)]
    own = [checksum_of(strategy, value) for value in found if _is_common(value)]
    return _combined([*own, *_set_to(variables)])


def _set_to(variables: Sequence[keras.Variable]) -> list[int]:
    """Checksums of what weights in parts were set to from outside of steps."""
    return [variable.set_to for variable in variables if compat.is_sharded(variable)]


def _is_common(variable: keras.Variable) -> bool:
    """Whether a variable must be equal in all processes; sums per replica need not be."""
    return (
        variable.synchronization != tf.VariableSynchronization.ON_READ
        and variable.dtype.is_floating
    )


def _combined(checksums: Iterable[int]) -> int:
    return zlib.crc32(np.array(list(checksums), np.int64).tobytes())
