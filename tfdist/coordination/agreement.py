"""One decision of all processes: what a callback changed in one, the others adopt."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import _compat
from tfdist.stages.accumulation import GradientAccumulator
from tfdist.stages.compression_state import CompressionState


class Agreement:
    """Watches what callbacks do to a model in this process, and makes all processes do the same.

    `begin` before the callbacks and `end` after them, in all processes. Where processes changed
    different things, the lowest rank's changes count.

    Args:
        model: the model that is trained.
        strategy: its strategy, of several processes.
        variables: gives the variables that the callbacks may change, the same in all processes.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        variables: Callable[[keras.Model], list[tf.Variable]],
    ):
        self._model = model
        self._strategy = strategy
        self._variables_of = variables
        self._before: list[int] = []

    def begin(self) -> None:
        """Notes the state before the callbacks."""
        self._before = self._checksums()

    def end(self) -> None:
        """Makes weights, learning rate, next epoch and the decision to stop equal everywhere.

        Raises:
            RuntimeError: when the processes' weights differ though no callback changed any.
        """
        after = self._checksums()
        changed = [int(a != b) for a, b in zip(after, self._before)]
        common = _combined([c for c, v in zip(after, self._variables()) if _is_common(v)])
        row = [
            int(bool(self._model.stop_training)),
            _compat.initial_epoch(self._model),
            int(any(changed)),
            common,
            int(any(state.is_new for state in compression_states(self._model))),
        ]
        rows = self._strategy.processes.all_gather(row)
        stops, epochs, changes, states, news = rows.T.tolist()
        root = changes.index(1) if any(changes) else 0
        if len(set(states)) > 1 and not any(changes):
            raise RuntimeError(
                "The ranks' weights or optimizer states have become different, so they no longer "
                "train one model. Something sets variables in one rank only, or a layer draws "
                "random numbers of its own. "
                f"Received: checksums {[f'{state:08x}' for state in states]} by rank"
            )
        if any(changes):
            self._adopt(root, changed)
        if any(news):
            for state in compression_states(self._model):
                state.share(news.index(1))
        _compat.set_initial_epoch(self._model, epochs[root])
        self._model.stop_training = any(stops)

    def _adopt(self, root: int, changed: list[int]) -> None:
        """Sets the variables that any process changed to their values in `root`."""
        processes = self._strategy.processes
        mask = processes.all_gather(changed).any(axis=0)
        chosen = [v for v, is_changed in zip(self._variables(), mask) if is_changed]
        broadcast_variables(self._strategy, chosen, root)
        adopted = {id(variable) for variable in chosen}
        for accumulator in accumulators(self._model):
            if adopted & {id(variable) for variable in accumulator.sums}:
                accumulator.note_spread()

    def _variables(self) -> list[tf.Variable]:
        return self._variables_of(self._model)

    def _checksums(self) -> list[int]:
        return [checksum(self._strategy, variable) for variable in self._variables()]


def checksum(strategy: Any, variable: tf.Variable) -> int:
    """A checksum of what this process' first replica has of `variable`."""
    return zlib.crc32(_local(strategy, variable).tobytes())


def broadcast_variables(strategy: Any, variables: list[tf.Variable], root: int) -> None:
    """Sets `variables` on all replicas to their values in process `root`; called by all."""
    values = strategy.processes.broadcast([_local(strategy, v) for v in variables], root)
    for variable, value in zip(variables, values):
        for part in strategy.experimental_local_results(variable):
            part.assign(value)


def _local(strategy: Any, variable: tf.Variable) -> np.ndarray:
    return np.asarray(strategy.experimental_local_results(variable)[0].numpy())


def all_variables(model: keras.Model) -> list[tf.Variable]:
    """The variables of `model`, of its optimizers and of what they accumulate."""
    found: dict[int, tf.Variable] = {}
    for owner in [model, *_optimizers(model)]:
        for variable in owner.variables:
            found.setdefault(id(variable.value), variable.value)
    for accumulator in accumulators(model):
        for variable in accumulator.variables:
            found.setdefault(id(variable), variable)
    return [v for v in found.values() if v.dtype != tf.string]


def learning_rates(model: keras.Model) -> list[tf.Variable]:
    """The learning rates that can be set: not those of schedules."""
    rates = [optimizer.learning_rate for optimizer in _optimizers(model)]
    return [rate.value for rate in rates if isinstance(rate, keras.Variable)]


def accumulators(model: keras.Model) -> list[GradientAccumulator]:
    """What the optimizers of `model` accumulate."""
    found = [getattr(optimizer, "accumulator", None) for optimizer in _optimizers(model)]
    return [accumulator for accumulator in found if accumulator is not None]


def compression_states(model: keras.Model) -> list[CompressionState]:
    """What the compressors of the optimizers of `model` keep."""
    found = [getattr(optimizer, "compression_state", None) for optimizer in _optimizers(model)]
    return [state for state in found if state is not None]


def _optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    return [v for v in vars(model).values() if isinstance(v, keras.optimizers.Optimizer)]


def _is_common(variable: Any) -> bool:
    """Whether a variable must be equal in all processes: not sums that each replica gathers."""
    return (
        variable.synchronization != tf.VariableSynchronization.ON_READ
        and variable.dtype.is_floating
    )


def _combined(checksums: list[int]) -> int:
    return zlib.crc32(np.array(checksums, np.uint32).tobytes())
