"""The callback that ends rounds of local steps where callbacks look at the model."""

from __future__ import annotations

from typing import Protocol

import keras


class TrainsApart(Protocol):
    """A strategy whose replicas train apart."""

    def finish_rounds(self) -> None:
        """Ends the rounds that are under way."""

    def make_logs_equal(self, model: keras.Model, logs: dict) -> None:
        """Gives all processes the same logs."""

    def trains_locally(self, model: keras.Model) -> bool:
        """Whether the next step is a local one."""

    def choose_step(self, model: keras.Model, is_local: bool) -> None:
        """Makes the train step of `model` anew if it is of the other kind."""


class Rounds(keras.callbacks.Callback):
    """Ends a round at the end of an epoch, and begins with local steps when it is time.

    It comes before all other callbacks.

    Args:
        strategy: the strategy of the model.
    """

    # It does the same in all processes.
    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(self, strategy: TrainsApart):
        super().__init__()
        self._strategy = strategy
        self._is_local = False

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """A callback may have gone back to a model that has fewer updates."""
        self._is_local = False

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Begins with local steps as soon as the synchronous updates are over."""
        if not self._is_local:
            self._is_local = self._strategy.trains_locally(self.model)
            self._strategy.choose_step(self.model, self._is_local)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Ends the round, before other callbacks save the model, or decide by the logs."""
        self._strategy.finish_rounds()
        if logs is not None:
            self._strategy.make_logs_equal(self.model, logs)
