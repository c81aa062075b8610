"""Keras' train function under a parameter server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tfdist.parameter_server.chief.collected_parts import CollectedParts
from tfdist.parameter_server.chief.kept_gradients import Accumulated, Accumulation
from tfdist.parameter_server.chief.scheduler import Scheduler
from tfdist.parameter_server.chief.timing import TimedFunction
from tfdist.parameter_server.chief.turns import Limits
from tfdist.parameter_server.contracts import ChiefStrategy, Guard, Schedule
from tfdist.parameter_server.data.distributed_data import DataIterator
from tfdist.parameter_server.data.parts_source import PartsSource
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.gradients import Outcome
from tfdist.parameter_server.work_item import Compute, WorkItem
from tfdist.parameter_server.worker.compressed_push import CompressedPush
from tfdist.structures import Structure


class TrainFunction(TimedFunction):
    """Each call waits for the next finished work item, and makes an update with it.

    Args:
        strategy: the strategy.
        model: the model.

    Attributes:
        epoch: the number of the epoch.
        batches: the number of batches that are left of the epoch; None for all that there are.
    """

    def __init__(self, strategy: ChiefStrategy, model: keras.Model):
        parts = strategy.policies.parts(strategy.num_workers)
        self._parts = parts
        self._accumulates = strategy.options.accumulation_steps
        super().__init__(strategy, model, "train_step", self._accumulates, parts)
        self.epoch = 0
        self.batches: int | None = None
        self._collected: CollectedParts | None = None
        self._push: CompressedPush | None = None
        self._accumulation = Accumulation(strategy, self._accumulates)
        self._watched = 0

    def __call__(self, iterator: Iterator[Structure]) -> Structure:
        """Trains on the next `steps_per_execution` batches."""
        if not isinstance(iterator, DataIterator):
            raise ValueError(
                "Under a parameter server a model is trained with `fit`, which keeps all workers "
                "busy. Received: a call of train_on_batch"
            )
        if iterator is not self._iterator:
            self.close()
            self._uncounted = 0
        done = 0
        while done < self.model.steps_per_execution and self.safely(self._advance, iterator):
            self._uncounted -= 1
            done += 1
            if self.batches is not None:
                self.batches -= 1
        if not done:
            raise StopIteration
        self.safely(self._fetch_logs)
        return self._logs

    def _forget_traces(self) -> None:
        super()._forget_traces()
        self._accumulation = Accumulation(self.strategy, self._accumulates)
        if self._push is not None:
            for worker in range(self.strategy.num_workers):
                self._push.forget(worker)

    def begin_fit(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Called when `fit` begins, with its callbacks."""

    def begin_epoch(self, epoch: int, batches: int | None) -> None:
        """Begins the data anew.

        Args:
            epoch: the number of the epoch.
            batches: how many batches the epoch has; None for all that there are.
        """
        self.close()
        self.strategy.snapshots.begin_epoch()
        self.epoch = epoch
        self.batches = batches

    def _start(self, iterator: DataIterator) -> None:
        source = iterator.training_source(
            self.epoch,
            self._left if self._parts else self.batches,
            gives_iterators=not self.strategy.journal.reads_batches,
        )
        self.begin(iterator, source, self._limits(), self._note_wait)
        if isinstance(source, PartsSource):
            assert self.schedule is not None
            self._collected = CollectedParts(self.strategy, source, self.schedule)

    @property
    def _left(self) -> int | None:
        """How many batches of the epoch are not used yet; None for all that there are."""
        return None if self.batches is None else self.batches - self._uncounted

    def _limits(self) -> Limits:
        kept = self._accumulation.batches
        return Limits(
            may_start=self.strategy.policies.may_start,
            budget=None if self._parts else self._left,  # the source counts global batches
            per_item=1 if self._parts else self._accumulates,
            first_item=1 if self._parts else self._accumulates - kept,
            max_pending=self.strategy.max_pending,
        )

    def _note_wait(self, worker: int) -> None:
        """Counts that a worker has to wait: before it begins, or before its gradient is used."""
        self.strategy.report.worker(worker).waits += 1

    def _scheduled(self, source: Source, make: Callable[[Compute], Scheduler]) -> Schedule:
        return self.strategy.journal.schedule(self, source, self._compute, make)

    def _prepare_push(self) -> None:
        optimizers = [optimizer.unwrap() for optimizer in self.step.optimizers]
        self.strategy.snapshots.begin_run(optimizers, self._guard())
        if self.strategy.options.compression is None:
            return
        if self._push is None:
            self._push = CompressedPush(self.strategy.options, self.step.optimizers)
        self._push.begin_run(self.strategy.version)

    def _guard(self) -> Guard | None:
        """What keeps workers from making updates while a snapshot is taken."""
        return None

    def _note(self, worker: int, error: Exception | None) -> None:
        super()._note(worker, error)
        if error is not None and self._push is not None:
            self._push.forget(worker)

    def _sent(self, item: WorkItem, outcome: Outcome) -> Outcome:
        if self._push is None:
            return outcome
        sender, noting = self._sender(item), self._note_for(item)
        gradients, item.unsent, item.anew = self._push(
            outcome.gradients, item.worker, sender, item.version, item.anew, noting
        )
        return outcome._replace(gradients=gradients)

    def _sender(self, item: WorkItem) -> int:
        """Whose gradient it is: of a worker, or, where global batches are divided, of a part."""
        return item.batches[0].index if self._parts else item.worker

    def _advance(self, iterator: DataIterator) -> bool:
        """Waits for a batch that no call has counted yet; False when the data have ended."""
        if self.schedule is None:
            self._start(iterator)
        while self._uncounted == 0:
            if not self._work():
                self._exhausted()
                return False
        return True

    def _work(self) -> bool:
        """Uses what workers have done; False when there is no more."""
        item = self.next(self._may_use)
        if item is None:
            return False
        self._take(item)
        if not (self._collected or self._accumulation.batches):
            self.strategy.snapshots.take_if_due(None)
        return True

    def _exhausted(self) -> None:
        """Ends the run: the data have ended."""
        self.strategy.journal.exhausted()
        if self._parts:
            self._count_as_one_device()
        self.close()

    def _count_as_one_device(self) -> None:
        """Counts the last step of Keras, which finds that data of unknown length have ended.

        On one device, Keras draws seeds and counts an update before it finds that no batch is left.
        """
        if self.model.steps_per_execution > 1 or self.batches is not None:
            return
        for seed, draws in zip(self.step.seeds, self.step.draws):
            seed.value.assign_add(tf.constant([0, draws], seed.value.dtype))
        if self._accumulates == 1:
            for optimizer in self.step.optimizers:  # once for each time that it is applied
                for counter in optimizer.counters():
                    counter.value.assign_add(1)

    def _may_use(self, others: Sequence[WorkItem]) -> bool:
        """Whether an update may come before the updates of `others`."""
        if self._parts:
            return True
        following = enumerate(sorted(other.version for other in others), self.strategy.version + 1)
        staleness = [later - version for later, version in following]
        return self.strategy.policies.may_update(staleness)

    def _take(self, item: WorkItem) -> None:
        """Uses a work item. Parts of a global batch are used once enough of them have arrived."""
        parts = self._collected
        if parts is not None and not parts.accepts(item):
            self.release(item)
            return
        outcome = _outcome_of(item)
        self._watch(item, outcome)
        if self._push is not None and self._accumulation.accepts(item.version):
            assert item.unsent is not None
            self._push.keep(item.worker, self._sender(item), item.unsent)
        if parts is None:
            self._use([item], outcome, len(item.batches))
            self.release(item)
            return
        whole = parts.add(item)
        if whole:
            self._use(whole, parts.outcome(whole, self.updates), 1)
        self.release(item)
        if whole:
            self._skip_dropped(len(whole))
            parts.advance()

    def _watch(self, item: WorkItem, outcome: Outcome) -> None:
        """Notes gradients that are not finite, if somebody has asked for this."""
        findings = self.strategy.nonfinite
        if findings is None:
            self._watched = 0
            return
        number = self._watched // max(self._parts, 1) + 1
        self._watched += len(item.batches)
        for path, finite in self.updates.finite_by_path(outcome.gradients).items():
            if not finite:
                findings.append((number, path, item.worker))

    def _skip_dropped(self, arrived: int) -> None:
        """Lets parts that were dropped count for the number of the batch."""
        if self._watched:
            self._watched += self._parts - arrived

    def _use(self, items: Sequence[WorkItem], outcome: Outcome, batches: int) -> None:
        """Updates with gradients, or keeps them until there are more, or drops them.

        If gradients are not finite, loss scaling skips the update, which then counts nowhere.

        Args:
            items: where the gradients come from: one work item, or the work items of all parts of a
                global batch.
            outcome: the gradients and changes.
            batches: the number of batches; an update has `accumulation_steps` of them.
        """
        strategy, last = self.strategy, items[-1]
        action, factor = "update", None
        now = Accumulated(outcome.gradients, last.worker, last.version, batches)
        if not self._accumulation.accepts(last.version):
            action = "dropped"
            results = self.updates.count(outcome.changes)
            strategy.report.add(last.worker, strategy.version - last.version, None)
        elif (whole := self._accumulation.add(now, self.updates)) is None:
            self._note_used(items)
            action = "kept"
            results = self.updates.change(outcome.changes, outcome.assigned)
        else:
            self._note_used(items)
            staleness = strategy.version - whole.version
            factor = strategy.policies.learning_rate_factor(staleness)
            read = (last.values or {}) if strategy.policies.compensates else {}
            results, applied, values = self.updates.update(
                whole.gradients, outcome.changes, outcome.assigned, factor, read
            )
            if applied is None or applied:
                self._note_update(results, last.worker, staleness, batches)
                self._renew(values)
                strategy.version += 1
                strategy.report.add(last.worker, staleness, factor)
            else:
                action, factor = "skipped", None
        strategy.journal.note(action, items, strategy.version, factor)
        self._logs = self.completed(outcome.logs, results)
        self._uncounted += batches


def _outcome_of(item: WorkItem) -> Outcome:
    assert item.outcome is not None
    return item.outcome
