"""The callbacks around all others: they end rounds of local steps, and watch over the weights."""

from __future__ import annotations

from typing import Protocol

import keras

from tfdist.step.model_rounds import BesideSteps


class TrainsApart(Protocol):
    """A strategy whose replicas train apart."""

    def finish_rounds(self) -> None:
        """Ends the rounds that are under way."""

    def make_logs_equal(self, model: keras.Model, logs: dict, results: dict | None = None) -> None:
        """Gives all processes the same logs."""

    def trains_locally(self, model: keras.Model) -> bool:
        """Whether the next step is a local one."""

    def choose_step(self, model: keras.Model, is_local: bool) -> None:
        """Makes the train step of `model` anew if it is of the other kind."""

    def watch(self, model: keras.Model, others: list, phase: str) -> None:
        """Called before callbacks run between two steps, with these callbacks."""

    def begin_pace(self) -> None:
        """Called where training begins."""

    def keep_pace(self) -> None:
        """Called before each execution of a train function."""

    def epoch_of_pace(self) -> dict[str, float]:
        """What rounds by time add to the logs of an epoch."""

    def check_nothing_set(self, model: keras.Model) -> None:
        """Raises an error if callbacks have set weights since `watch` was called."""


class Rounds(keras.callbacks.Callback):
    """Ends a round at the end of an epoch, and begins with local steps when it is time.

    It comes before all other callbacks.

    Args:
        strategy: the strategy of the model.
        others: all callbacks of the run.
        beside: what is exchanged while steps run; None for nothing.

    Attributes:
        is_local: whether replicas train apart by now.
    """

    # It does the same in all processes.
    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(
        self,
        strategy: TrainsApart,
        others: list[keras.callbacks.Callback],
        beside: BesideSteps | None,
    ):
        super().__init__()
        self._strategy = strategy
        self._beside = beside
        self._others = others
        self._results: dict | None = None
        self.is_local = False

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to measure for rounds by time."""
        self._strategy.begin_pace()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """A callback may have gone back to a model that has fewer updates."""
        self.is_local = False
        self._results = None

    def on_test_begin(self, logs: dict | None = None) -> None:
        """Keeps the metrics of training: validation begins the same metrics anew."""
        self._results = self.model.get_metrics_result()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Begins with local steps as soon as the synchronous updates are over."""
        if not self.is_local:
            self.is_local = self._strategy.trains_locally(self.model)
            self._strategy.choose_step(self.model, self.is_local)
        if self.is_local:
            self._strategy.keep_pace()
            if self._beside is not None:
                self._beside.before(self.model)
            self._strategy.watch(self.model, self._others, "begin")

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Begins to watch the other callbacks: they may look at weights, but not set them."""
        if self.is_local:
            if self._beside is not None:
                self._beside.after(self.model)
            self._strategy.watch(self.model, self._others, "end")

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Ends the round, before other callbacks save the model, or decide by the logs."""
        self._strategy.finish_rounds()
        if logs is not None:
            self._strategy.make_logs_equal(self.model, logs, self._results)
            logs.update(self._strategy.epoch_of_pace())


class AfterOthers(keras.callbacks.Callback):
    """Raises an error if a callback has set weights in the middle of an epoch.

    It comes after all other callbacks.

    Args:
        strategy: the strategy of the model.
        rounds: the callback that comes before all others.
    """

    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(self, strategy: TrainsApart, rounds: Rounds):
        super().__init__()
        self._strategy = strategy
        self._rounds = rounds

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Checks what callbacks have done before a batch."""
        if self._rounds.is_local:
            self._strategy.check_nothing_set(self.model)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Checks what callbacks have done after a batch."""
        if self._rounds.is_local:
            self._strategy.check_nothing_set(self.model)
