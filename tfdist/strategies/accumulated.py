"""The gradients that a rank of an elastic group accumulates, and how they are saved."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.processes.on_demand import OnDemand
from tfdist.processes.shared_variables import accumulators
from tfdist.step.replica_state import ReplicaState


class AtOnce(OnDemand):
    """Gives rank 0 what only the others have before callbacks run, not when it asks for it.

    Ranks that answer in another thread could not say which operation they are in.
    """

    def begin(self, states: Sequence[ReplicaState]) -> None:
        """Begins a phase in which rank 0 may save alone."""
        super().begin([])
        before = None
        while before != self._processes.membership:  # the first rank of now has the rows
            before = self._processes.membership
            for state in states:
                state.hold()

    def end(self) -> None:
        """Ends the phase."""
        self._begun.pop()


class AccumulatedGradients:
    """The gradients that this rank accumulates for a model.

    Args:
        model: the model.
        strategy: its strategy.
    """

    def __init__(self, model: keras.Model, strategy: tf.distribute.Strategy):
        self._model = model
        self._strategy = strategy

    def own(self) -> list[tf.Variable]:
        """The variables that they are in."""
        entries = [entry for state in accumulators(self._model) for entry in state.entries()]
        return [self._strategy.experimental_local_results(entry.variable)[0] for entry in entries]

    def is_waiting(self) -> bool:
        """Whether they wait for an update."""
        return any(state.has_rows() for state in accumulators(self._model))
