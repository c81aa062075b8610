"""The interfaces of strategies that the code in this package relies on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import keras
import tensorflow as tf

from tfdist.engines.processes import Processes

if TYPE_CHECKING:
    from tfdist.processes.agreement import Agreement
    from tfdist.processes.files import CallbackFiles
    from tfdist.processes.on_demand import OnDemand
    from tfdist.processes.watching import Comparison


class KerasRunner(Protocol):
    """A strategy under which Keras' own methods run.

    Attributes:
        callback_files: the files of the callbacks, for each run that is under way.
    """

    callback_files: list[CallbackFiles]

    def finish_rounds(self) -> None:
        """Ends rounds of local steps, so that the replicas have one model; called by all."""

    def stop_watching(self) -> None:
        """Called where an exception may have stopped callbacks in a run."""

    @property
    def is_chief(self) -> bool:
        """Whether this process writes files and progress."""

    @property
    def is_multi_process(self) -> bool:
        """Whether there are other processes to agree with."""


class WithReplicas(Protocol):
    """A strategy with replicas in this process."""

    def experimental_local_results(self, value: tf.Tensor) -> tuple:
        """A value's parts on the local replicas; see `tf.distribute.Strategy`."""


class Coordinated(KerasRunner, WithReplicas, Protocol):
    """A strategy whose replicas live in several processes.

    Attributes:
        processes: the processes of the replicas.
        everyone: all processes that train one model; where replicas are groups of processes, more.
        log_all_ranks: whether all processes show progress, not only the chief.
        callbacks_run: whether Keras is running callbacks; the processes agree after them.
        data: compares what the processes have read of global batches.
        on_demand: lets the first process save alone while callbacks run.
    """

    processes: Processes
    everyone: Processes
    log_all_ranks: bool
    callbacks_run: bool
    data: Comparison
    on_demand: OnDemand

    def prepare_run(self, model: keras.Model) -> None:
        """Called before Keras' methods run steps of `model`."""

    def trains_with(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Called when training begins, with the callbacks of the user and of Keras."""

    def make_logs_equal(self, model: keras.Model, logs: dict, results: dict | None = None) -> None:
        """Gives all processes the same logs, where a step knows those of one; called by all."""

    def epoch_logs(self) -> dict[str, float]:
        """What the strategy adds to the logs of each epoch."""

    def loaded(self, model: keras.Model) -> None:
        """Called by all processes when they have read what each of them has for itself."""

    def make_equal(self, model: keras.Model) -> bool:
        """Makes variables equal that each process has made for itself; called by all of them.

        Returns:
            Whether there were any.
        """

    def agreements(
        self, model: keras.Model, variables: Callable[[keras.Model], list[tf.Variable]]
    ) -> Sequence[Agreement]:
        """What makes one decision of what callbacks did to `variables`, one after the other."""

    def scope(self) -> AbstractContextManager[Iterator[tf.distribute.Strategy]]:
        """A context in which variables are made for this strategy."""
