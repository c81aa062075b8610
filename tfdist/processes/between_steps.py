"""Finds out what callbacks set between two steps, where each replica has weights of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import keras

from tfdist.checksum import checksum
from tfdist.engines.processes import Processes
from tfdist.processes.agreement import check_equal, combined_checksum
from tfdist.processes.callback_kinds import may_set_in_batches
from tfdist.processes.contracts import WithReplicas


class _TrainsApart(WithReplicas, Protocol):
    processes: Processes


class BetweenSteps:
    """Watches the callbacks that run between two steps of replicas that train apart.

    What a callback reads there is what one replica has, and what a callback sets goes to all
    replicas of its process, in the place of what they have learned. So a callback may set weights
    only after it has ended the round, and then all processes must set the same.

    Nothing is exchanged, unless the round has ended between the steps.

    Args:
        strategy: the strategy of the model.
    """

    def __init__(self, strategy: _TrainsApart):
        self._strategy = strategy
        self._callbacks: list[keras.callbacks.Callback] = []
        self._before: list[tuple[keras.Variable, list[int]]] = []
        self._is_open = self._has_round_ended = False

    def begin(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        phase: str,
        variables: Sequence[keras.Variable],
    ) -> None:
        """Called before callbacks run between two steps; in all processes.

        Args:
            callbacks: those that are about to run.
            phase: "begin" or "end", of a batch.
            variables: those that replicas may have for themselves.
        """
        self._is_open, self._has_round_ended = True, False
        self._callbacks = [c for c in callbacks if may_set_in_batches(c, phase)]
        self._before = [(v, self._checksums(v)) for v in variables if self._callbacks]

    def note_end_of_round(self) -> None:
        """Called by all processes before a round ends: from now on callbacks may set weights.

        Raises:
            ValueError: when a callback has set something before.
        """
        self._check()
        self._has_round_ended = self._is_open

    def end(self, model: keras.Model) -> None:
        """Called after the callbacks; in all processes.

        Raises:
            ValueError: when a callback has set something within a round.
            RuntimeError: in all processes, when they have set different things after a round.
        """
        self._check()
        has_ended, processes = self._has_round_ended, self._strategy.processes
        self.abandon()
        if has_ended and processes.size > 1:
            own = combined_checksum(self._strategy, model.variables)
            check_equal(processes.all_gather([own])[:, 0].tolist())

    def abandon(self) -> None:
        """Called where an exception may have stopped the callbacks."""
        self._before = []
        self._is_open = self._has_round_ended = False

    def _check(self) -> None:
        changed = [v.path for v, before in self._before if self._checksums(v) != before]
        self._before = []
        if changed:
            names = sorted({type(callback).__name__ for callback in self._callbacks})
            raise ValueError(
                "With `local` a callback cannot set weights between two steps: each replica has "
                "weights of its own there, so what all but one have learned since the last round "
                "would be lost. Set them in `train_step`, or at the beginning or end of an epoch; "
                "or call `model.optimizer.finish_round()` in all ranks before the callback reads "
                "or sets weights; or train without `local`. "
                f"Received: {changed}, set in the middle of an epoch by one of {names}"
            )

    def _checksums(self, variable: keras.Variable) -> list[int]:
        return [checksum(c) for c in self._strategy.experimental_local_results(variable.value)]
