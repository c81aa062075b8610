"""What the chief, the user's strategy, and a record expect of each other."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.compression.base import Compressor
from tfdist.options import Options
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.report import StalenessReport
from tfdist.parameter_server.spans import ServerSpans
from tfdist.parameter_server.work_item import Compute, Snapshot, WorkItem
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.staleness import Policies
from tfdist.structures import Structure


class Closable(Protocol):
    """What lets workers work until it is closed."""

    def close(self) -> None:
        """Ends what the workers do."""


class Schedule(Closable, Protocol):
    """The work items of one run: workers do them now, or a record tells of them."""

    def start(self, coordinator: compat.Coordinator, current: Snapshot) -> None:
        """Begins with the weights `current`."""

    def next(
        self, may_use: Callable[[Sequence[WorkItem]], bool], timeout: float
    ) -> WorkItem | None:
        """Waits for a finished work item; None when there are no more.

        Args:
            may_use: whether a work item may be used before others that are under way; called with
                these others.
            timeout: for how many seconds all workers may be lost before an error is raised.
        """

    def release(self, item: WorkItem, current: Snapshot) -> None:
        """Called when an item was used; `current` are the weights after its use."""


class Training(Protocol):
    """A `fit`, as a journal sees it.

    Attributes:
        strategy: the strategy.
        model: the model.
        step: the model's step, once a run has begun.
        epoch: the number of the epoch.
    """

    strategy: ChiefStrategy
    model: keras.Model
    step: FunctionalStep
    epoch: int


class Journal(Protocol):
    """Who listens to training: a recorder, a replay, or nobody.

    Attributes:
        reads_batches: whether it looks at the data of the batches.
        follows_record: whether a record says which batches are used.
    """

    reads_batches: bool
    follows_record: bool

    def fit(self, training: Training) -> contextlib.AbstractContextManager[None]:
        """Surrounds a `fit`."""

    def schedule(
        self,
        training: Training,
        source: Source,
        compute: Compute,
        make: Callable[[Compute], Schedule],
    ) -> Schedule:
        """The work items of a run of training.

        Args:
            training: the `fit`.
            source: where batches come from.
            compute: does a work item.
            make: makes the schedule by which the workers do them, given what to call for each.
        """

    def note(
        self, action: str, items: Sequence[WorkItem], version: int, factor: float | None
    ) -> None:
        """Called when gradients were used.

        Args:
            action: "update", "kept", "dropped" or "skipped".
            items: the work items of the gradients: one, or for a global batch one for each part.
            version: the number of updates so far.
            factor: what the learning rate was multiplied by; None where nothing was updated.
        """

    def exhausted(self) -> None:
        """Called when a run has no more work items."""


class Guard(Protocol):
    """What keeps workers from making updates themselves while values are read."""

    def at_rest(self) -> contextlib.AbstractContextManager[int]:
        """In this context nobody changes the weights. It gives the number of updates so far."""


class Snapshots(Protocol):
    """The snapshots of a strategy, as functions of Keras use them; see `snapshots.snapshots`.

    Attributes:
        restores: how often training went back to a snapshot.
        can_restore: whether there is a snapshot.
    """

    restores: int

    @property
    def can_restore(self) -> bool:
        """Whether there is a snapshot to go back to."""

    def note(self, variables: Sequence[tf.Variable]) -> None:
        """Adds variables on parameter servers that were made outside of the scope."""

    def begin_epoch(self) -> None:
        """Called when an epoch begins."""

    def begin_run(
        self, optimizers: Sequence[keras.optimizers.Optimizer], guard: Guard | None
    ) -> None:
        """Called before workers begin."""

    def take_if_due(self, guard: Guard | None) -> None:
        """Takes a snapshot if it is time for one."""

    def restore(self, error: Exception, lose: Callable[[int], int] = ...) -> None:
        """Goes back to the last snapshot, or raises an error."""


class ChiefStrategy(Protocol):
    """`tfdist.ParameterServerStrategy`, as the chief uses it.

    Attributes:
        options: the options that all strategies share.
        policies: what is done about stale gradients.
        pull: what codes the weights that workers read; None for nothing.
        input: who reads the training data: "static" or "dynamic".
        addresses: the addresses of all processes, by job.
        ps_devices: the devices of the parameter servers.
        num_workers: the number of workers that training is for.
        max_pending: the number of work items that may be under way at a time.
        timeout: for how many seconds all workers may be lost before an error is raised.
        coordinator: calls functions in the threads of the workers.
        lost: the workers that are lost.
        version: the number of updates so far.
        report: how stale the gradients of the last `fit` were.
        nonfinite: a list for gradients that are not finite: the number of the batch, the variable's
            path and the worker. None where nobody asks.
        server_spans: notes what happens in steps; None where nobody asks.
        journal: who listens.
        snapshots: what training goes back to when a parameter server was lost.
        extended: see `tf.distribute.Strategy`.
    """

    options: Options
    policies: Policies
    pull: Compressor | None
    input: str
    addresses: Mapping[str, Sequence[str]]
    ps_devices: Sequence[str]
    num_workers: int
    max_pending: int
    timeout: float
    coordinator: compat.Coordinator
    lost: set[int]
    version: int
    report: StalenessReport
    nonfinite: list[tuple[int, str, int]] | None
    server_spans: ServerSpans | None
    journal: Journal
    snapshots: Snapshots
    extended: tf.distribute.StrategyExtended

    def scope(self) -> contextlib.AbstractContextManager:
        """See `tf.distribute.Strategy`."""

    def run(self, fn: Callable, args: tuple = ()) -> Structure:
        """See `tf.distribute.Strategy`."""

    def prepare(self, model: keras.Model) -> None:
        """Checks and completes what the scope and `compile` could not yet see."""

    def activate(self, work: Closable) -> None:
        """Ends other work of the workers, because a worker does one thing at a time."""

    def keras_run(self, model: keras.Model, name: str) -> contextlib.AbstractContextManager[None]:
        """Surrounds `fit`, `evaluate` or `predict` of `model`; `name` says which."""
