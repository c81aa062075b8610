"""One decision for all processes: what a callback changes in one process, the others adopt."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.checksum import checksum
from tfdist.engines.processes import Processes
from tfdist.processes.contracts import Coordinated, WithReplicas
from tfdist.processes.own_parts import OwnParts, check_changes
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.model_optimizers import learning_rates, optimizers_of
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.saved_weights import weights_in_parts


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

    def end(self) -> None:
        """Makes weights, learning rate, next epoch and the decision to stop equal everywhere.

        Raises:
            RuntimeError: when the processes' weights differ though no callback changed any.
        """
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
        ]
        rows = self._processes.all_gather(row)
        stops, epochs, changes, states, news, parts, wholes = rows.T.tolist()
        check_changes(parts)
        if not any(news):
            check_equal(wholes)
        root = changes.index(1) if any(changes) else 0
        if not any(changes):
            check_equal(states)
        self._before = after
        if any(changes):
            self._adopt(changed, after)
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

    def end(self) -> None:
        """See `Agreement.end`."""
        for agreement in self._agreements:
            agreement.end()


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


def checksum_of(strategy: WithReplicas, variable: tf.Variable) -> int:
    """A checksum of the value of `variable` on this process' first replica."""
    return checksum(strategy.experimental_local_results(variable)[0])


def broadcast_variables(
    strategy: Coordinated,
    variables: list[tf.Variable],
    root: int,
    processes: Processes | None = None,
) -> None:
    """Sets `variables` on all replicas to their values in process `root`; called by all.

    Args:
        strategy: the strategy of the variables.
        variables: the variables.
        root: a rank of the processes.
        processes: the processes; None for those of the strategy's replicas.
    """
    processes = processes or strategy.processes
    root = processes.source(root)
    for variable in variables:
        (value,) = processes.broadcast([_local(strategy, variable)], root)
        for part in strategy.experimental_local_results(variable):
            part.assign(value)


def share_variables(model: keras.Model, strategy: Coordinated, root: int) -> None:
    """Gives all processes the variables of process `root`; called by all.

    Only variables that differ travel. Variables with a different value on each replica never do.
    """
    common = [
        variable
        for variable in all_variables(model)
        if variable.synchronization != tf.VariableSynchronization.ON_READ
    ]
    checksums = strategy.processes.all_gather([checksum_of(strategy, v) for v in common])
    differ = (checksums != checksums[0]).any(axis=0)
    different = [variable for variable, differs in zip(common, differ) if differs]
    broadcast_variables(strategy, different, root)


def _local(strategy: Coordinated, variable: tf.Variable) -> np.ndarray:
    return np.asarray(strategy.experimental_local_results(variable)[0].numpy())


def all_variables(model: keras.Model) -> list[tf.Variable]:
    """The variables of `model` and of its optimizers, without what each replica has for itself."""
    found: dict[int, tf.Variable] = {}
    for owner in [model, *optimizers_of(model).values()]:
        for variable in owner.variables:
            if compat.is_sharded(variable):
                continue
            found.setdefault(id(variable.value), variable.value)
    for state in replica_states(model):
        for owned in state.owned:
            found.pop(id(owned), None)
        found.update({id(counter): counter for counter in state.counters})
    return [v for v in found.values() if v.dtype != tf.string]


def rates(model: keras.Model) -> list[tf.Variable]:
    """The learning rates of the optimizers of `model` that can be set."""
    owners = optimizers_of(model).values()
    return [rate.value for optimizer in owners for rate in learning_rates(optimizer)]


def replica_states(model: keras.Model) -> list[ReplicaState]:
    """The state that each replica owns: of accumulation, compressors, local steps, sharding."""
    found = [
        getattr(optimizer, name, None)
        for optimizer in optimizers_of(model).values()
        for name in ("accumulator", "compression_state", "local_state", "parts_of_state")
    ]
    return [state for state in (*found, weights_in_parts(model)) if state is not None]


def accumulators(model: keras.Model) -> list[GradientAccumulator]:
    """The gradients that each replica accumulates."""
    return [state for state in replica_states(model) if isinstance(state, GradientAccumulator)]


def _is_common(variable: keras.Variable) -> bool:
    """Whether a variable must be equal in all processes; sums per replica need not be."""
    return (
        variable.synchronization != tf.VariableSynchronization.ON_READ
        and variable.dtype.is_floating
    )


def _combined(checksums: Iterable[int]) -> int:
    return zlib.crc32(np.array(list(checksums), np.int64).tobytes())
