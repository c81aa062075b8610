"""Keras' train, test and predict functions under a parameter server: what they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.parameter_server.chief import errors
from tfdist.parameter_server.chief.parts_scheduler import PartsScheduler
from tfdist.parameter_server.chief.refusals import check_applied
from tfdist.parameter_server.chief.scheduler import Scheduler
from tfdist.parameter_server.chief.turns import Limits
from tfdist.parameter_server.chief.updates import Updates
from tfdist.parameter_server.contracts import ChiefStrategy, Schedule
from tfdist.parameter_server.data.distributed_data import DataIterator
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.devices import CHIEF
from tfdist.parameter_server.gradients import Outcome
from tfdist.parameter_server.reading import Reading
from tfdist.parameter_server.work_item import Compute, Snapshot, WorkItem
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.parameter_server.worker.points import Note
from tfdist.parameter_server.worker.step_on_worker import StepOnWorker
from tfdist.step import logs as step_logs
from tfdist.structures import Structure


class KerasFunction:
    """Lets the workers run a step of a model.

    Args:
        strategy: the strategy.
        model: the model.
        step_name: the name of the step.
        micro_batches: the number of batches that an update is the mean of.
        parts: the number of parts of a global batch; 0 where workers get whole batches.

    Attributes:
        step: the step as a function, once a run has begun.
        updates: makes the updates, once a run has begun.
        schedule: the work items of the present run; None for no run.
        values: the values of the weights after the last update, by the keys of `packing`.
    """

    step: FunctionalStep
    updates: Updates

    def __init__(
        self,
        strategy: ChiefStrategy,
        model: keras.Model,
        step_name: str,
        micro_batches: int = 1,
        parts: int = 0,
    ):
        self.strategy = strategy
        self.model = model
        self.step_name = step_name
        self.schedule: Schedule | None = None
        self.values: dict[str, tf.Tensor] = {}
        self._micro_batches = micro_batches
        self._parts = parts
        self._is_prepared = False
        self._restores = 0
        self._iterator: DataIterator | None = None
        self._seeds: list[np.ndarray] = []
        self._metrics: list[str] = []

    def begin(
        self,
        iterator: DataIterator,
        source: Source,
        limits: Limits,
        on_wait: Callable[[int], None],
    ) -> None:
        """Begins a run on the batches of `source`.

        Args:
            iterator: what Keras iterates over.
            source: where batches come from.
            limits: how much work the workers may begin.
            on_wait: called with the index of a worker that has to wait.
        """
        self.strategy.activate(self)
        spec = iterator.element_spec
        if source.gives_iterators:
            spec = tf.data.IteratorSpec(spec)
        self._prepare(spec)
        self._metrics = self._metrics or list(self.model.get_metrics_result())
        self._seeds = [seed.numpy() for seed in self.step.seeds]
        self._trace(source, spec)
        check_applied(self.step.optimizers, self.strategy.options)
        self._prepare_push()
        self._iterator = iterator

        def make(compute: Compute) -> Scheduler:
            workers = len(self.strategy.addresses["worker"])
            hooks = (self._note, on_wait, self._settle)
            kind = PartsScheduler if self._parts else Scheduler
            return kind(workers, source, compute, limits, self.strategy.lost, *hooks)

        self.schedule = self._scheduled(source, make)
        self.schedule.start(self.strategy.coordinator, self._snapshot())

    def _trace(self, source: Source, spec: Structure) -> None:
        """Traces what the workers run for batches of the type `spec`, or iterators over them."""
        del source
        reading = self.updates.reading
        self.values = self.updates.values([*reading.changing, *reading.fixed])
        self._on_worker.prepare(self.values, self._seeds, spec)

    def _scheduled(self, source: Source, make: Callable[[Compute], Scheduler]) -> Schedule:
        """The schedule of a run; `make` makes a schedule of work items that workers do."""
        del source
        return make(self._compute)

    def _prepare(self, spec: Structure) -> None:
        """Makes the functions at the first run: earlier, Keras may not have built the model."""
        if not self._is_prepared:
            self.strategy.prepare(self.model)
            # A policy that compensates, and a record, need the values that a step has read.
            copies = self.strategy.policies.compensates or self.strategy.journal.reads_batches
            self.step = FunctionalStep(self.model, self.step_name, copies)
            compresses = self.strategy.options.compression is not None
            drops = self.strategy.policies.drop > 0
            self._on_worker = StepOnWorker(
                self.step, self._micro_batches, self._parts, compresses, drops
            )
            reading = self._reading(spec)
            self.updates = Updates(self.strategy, self.step, self.strategy.policies, reading)
            self._is_prepared = True
            self._restores = self.strategy.snapshots.restores
        elif self._restores != self.strategy.snapshots.restores:
            self._restores = self.strategy.snapshots.restores
            self._forget_traces()

    def _reading(self, spec: Structure) -> Reading:
        """How the values of weights travel; batches, or iterators over them, have type `spec`."""
        del spec
        return Reading.plain(self.step)

    def _forget_traces(self) -> None:
        """Called when variables have moved to a server that has replaced a lost one."""
        self.updates.forget_traces()
        self._on_worker.forget_traces()

    def _prepare_push(self) -> None:
        """Called at the beginning of a run, when the step has been traced."""

    def _note(self, worker: int, error: Exception | None) -> None:
        """Called with the error when a worker is lost, and with None when the worker is back."""
        errors.log_change(self.strategy.addresses["worker"], worker, error)

    def _settle(self, items: Sequence[WorkItem], close: bool) -> None:
        """Called with work items that end early; `close` says whether the run ends."""

    def close(self) -> None:
        """Ends what the workers do."""
        if self.schedule is not None:
            self.schedule.close()
            self.schedule = None

    def next(
        self, may_use: Callable[[Sequence[WorkItem]], bool] = lambda others: True
    ) -> WorkItem | None:
        """The next finished work item; None when there are no more. See `Schedule.next`."""
        assert self.schedule is not None
        return self.schedule.next(may_use, self.strategy.timeout)

    def release(self, item: WorkItem) -> None:
        """Lets the worker go on, after its work item was used."""
        assert self.schedule is not None
        self.schedule.release(item, self._snapshot())

    def _snapshot(self) -> Snapshot:
        return Snapshot(self.strategy.version, self.values)

    def _compute(self, item: WorkItem, read: Callable[[WorkItem], None]) -> None:
        """Lets a worker do a work item; in its thread."""
        read(item)
        values = self._values_for(item)
        outcome: Outcome | None = None
        for index, batch in enumerate(item.batches):
            seeds = self._seeds_of(item.number + index if batch.part is None else batch.number)
            last, noting = index == len(item.batches) - 1, self._note_for(item)
            with errors.within_data():
                outcome = self._on_worker(values, seeds, batch, outcome, last, noting)
        if outcome is not None:
            item.outcome = self._fetched(self._sent(item, outcome))

    def _values_for(self, item: WorkItem) -> dict[str, tf.Tensor]:
        """The values that a work item has read, as its worker gets them; called in its thread."""
        assert item.values is not None
        return item.values

    def _note_for(self, item: WorkItem) -> Note | None:
        """What gets the times of a work item's points; None where nobody asks."""
        del item
        return None

    def _sent(self, item: WorkItem, outcome: Outcome) -> Outcome:
        """What arrives when a worker sends what it has computed; called in its thread."""
        del item
        return outcome

    def _seeds_of(self, number: int) -> list[np.ndarray]:
        """The seeds of batch `number` of this run, as if the batches came one after the other."""
        return [
            (seed + np.array([0, number * draws])).astype(seed.dtype)
            for seed, draws in zip(self._seeds, self.step.draws)
        ]

    def _fetched(self, outcome: Outcome) -> Outcome:
        """`outcome` with its logs in the chief; None where they are the metrics' results."""
        if isinstance(outcome.logs, dict) and set(outcome.logs) == set(self._metrics):
            return outcome._replace(logs=None)
        with tf.device(CHIEF):
            logs = tf.nest.map_structure(tf.identity, outcome.logs, expand_composites=True)
        return outcome._replace(logs=logs)

    def completed(self, logs: Structure, results: dict[str, tf.Tensor]) -> Structure:
        """What Keras gets of a batch: its logs, with the results of metrics over all batches.

        Args:
            logs: what the step returned; None for the results of the metrics.
            results: the results of the metrics.
        """
        if logs is None:
            return dict(results)
        if not isinstance(logs, dict):
            return logs
        return step_logs.with_results(logs, results, self.model, self.step_name)
