"""Keras' train function under a parameter server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.parameter_server.functions import Run
from tfdist.parameter_server.push import CompressedPush
from tfdist.parameter_server.step import Step
from tfdist.parameter_server.steps import Steps
from tfdist.parameter_server.updates import Gradients
from tfdist.parameter_server.worker import Pushed
from tfdist.step.logs import total


class Kept(NamedTuple):
    """Gradients that wait for more, at the end of an epoch of accumulation.

    Attributes:
        gradients: their sum.
        worker: the one that computed the last of them.
        version: of the oldest values that they were computed from.
        batches: of how many batches they are.
    """

    gradients: Gradients
    worker: int
    version: int
    batches: int


class TrainFunction(Run):
    """Each call waits for the next step that is done, and makes an update with it.

    Args:
        strategy: the strategy.
        model: the model.

    Attributes:
        epoch: the number of the epoch.
        batches: the number of batches that are left of it; None for as many as there are.
    """

    def __init__(self, strategy: Any, model: keras.Model):
        parts = strategy.num_workers if strategy.policies.synchronous else 0
        self._parts = parts
        self._accumulates = strategy.options.accumulation_steps
        super().__init__(strategy, model, "train_step", self._accumulates, parts)
        self.epoch = 0
        self.batches: int | None = None
        self._source: Any = None
        self._uncounted = 0
        self._logs: dict[str, Any] = {}
        self._collected: list[Step] = []
        self._push: CompressedPush | None = None
        self._kept: Kept | None = None
        self._watched = 0

    def __call__(self, iterator: Any) -> dict[str, Any]:
        """Trains on the next `steps_per_execution` batches."""
        if not hasattr(iterator, "training_source"):
            raise ValueError(
                "Under a parameter server a model is trained with `fit`, which keeps all workers "
                "busy. Received: a call of train_on_batch"
            )
        if iterator is not self._iterator:
            self._uncounted = 0
        if iterator is not self._iterator or self.steps is None:
            self._start(iterator)
        done = 0
        while done < self.model.steps_per_execution and self._advance():
            self._uncounted -= 1
            done += 1
            if self.batches is not None:
                self.batches -= 1
        if not done:
            raise StopIteration
        return self._logs

    def _start(self, iterator: Any) -> None:
        self._source = iterator.training_source(self.epoch, self.batches)
        left = None if self.batches is None else self.batches - self._uncounted
        self._collected = []
        kept = self._kept.batches if self._kept else 0
        self.begin(
            iterator,
            self._source,
            may_start=self.strategy.policies.may_start,
            budget=None if left is None else left * max(self._parts, 1),
            per_step=1 if self._parts else self._accumulates,
            first_step=1 if self._parts else self._accumulates - kept,
            max_pending=self.strategy.max_pending,
            on_wait=self.strategy.note_wait,
        )

    def _make_steps(self, *arguments: Any, **options: Any) -> Steps:
        return self.strategy.journal.steps(self, Steps, *arguments, **options)

    def _prepare_push(self) -> None:
        if self.strategy.options.compression is None:
            return
        if self._push is None:
            self._push = CompressedPush(self.strategy.options, self.step.optimizers)
        self._push.begin_run(self.strategy.version)

    def _note(self, worker: int, error: Exception | None) -> None:
        super()._note(worker, error)
        if error is not None and self._push is not None:
            self._push.forget(worker)

    def _sent(self, step: Step, result: Pushed) -> Pushed:
        if self._push is None:
            return result
        gradients, step.states, step.anew = self._push(
            result.gradients, step.worker, self._sender(step), step.version, step.anew
        )
        return result._replace(gradients=gradients)

    def _sender(self, step: Step) -> int:
        """Whose gradient it is: a worker's, or with parts of global batches a part's."""
        return step.batches[0].index if self._parts else step.worker

    def _advance(self) -> bool:
        """Makes sure that there is a batch that no call has counted; False at the end of data."""
        while self._uncounted == 0:
            step = self.next(self._may_use)
            if step is None:
                self.strategy.journal.exhausted()
                if self._parts:
                    self._count_as_one_device()
                self.close()
                return False
            self._take(step)
        return True

    def _count_as_one_device(self) -> None:
        """Counts the step in which Keras finds that data of unknown length have ended.

        On one device it has drawn seeds and counted an update before it finds no batch.
        """
        if self.model.steps_per_execution > 1 or self.batches is not None:
            return
        for seed, draws in zip(self.step.seeds, self.step.draws):
            seed.value.assign_add(tf.constant([0, draws], seed.value.dtype))
        if self._accumulates == 1:
            for optimizer in self.step.optimizers:
                optimizer.unwrap().iterations.value.assign_add(1)

    def _may_use(self, others: Sequence[Step]) -> bool:
        """Whether an update may come before those of `others`."""
        if self._parts:
            return True
        following = enumerate(sorted(other.version for other in others), self.strategy.version + 1)
        staleness = [later - version for later, version in following]
        return self.strategy.policies.may_update(staleness)

    def _take(self, step: Step) -> None:
        """Uses a step, or all parts of a global batch once they are there."""
        self._watch(step)
        if self._push is not None and self._accepts(step):
            self._push.keep(step.worker, self._sender(step), step.states)
        if not self._parts:
            self._use([step], step.result, len(step.batches))
            self._release(step)
            return
        self._collected.append(step)
        whole = len(self._collected) == self._parts
        if whole:
            in_order = sorted(self._collected, key=lambda step: step.batches[0].index)
            self._collected = []
            gradients, changes = self.updates.add(
                [(part.result.gradients, part.result.changes) for part in in_order]
            )
            own = [part.result.logs for part in in_order]
            logs = None if own[0] is None else total(own)
            assigned = in_order[-1].result.assigned
            self._use(in_order, Pushed(gradients, changes, assigned, logs), 1)
        self._release(step)
        if whole:
            self._source.advance()

    def _watch(self, step: Step) -> None:
        """Notes gradients that are not finite, where somebody asks for them."""
        findings = self.strategy.nonfinite
        if findings is None:
            self._watched = 0
            return
        number = self._watched // max(self._parts, 1) + 1
        self._watched += len(step.batches)
        for path, finite in self.updates.finite_by_path(step.result.gradients).items():
            if not finite:
                findings.append((number, path, step.worker))

    def _accepts(self, gradients: Step | Kept) -> bool:
        """Whether gradients are not dropped."""
        return self.strategy.policies.accepts(self.strategy.version - gradients.version)

    def _release(self, step: Step) -> None:
        assert self.steps is not None
        self.steps.release(step, (self.strategy.version, self.values))

    def _use(self, steps: Sequence[Step], result: Pushed, batches: int) -> None:
        """Updates with gradients, adds them to those that wait for more, or drops them.

        Loss scaling skips an update with gradients that are not finite: it counts nowhere.

        Args:
            steps: whose gradients they are: one step, or those of all parts of a global batch.
            result: the gradients and changes.
            batches: the number of batches, of the `accumulation_steps` of an update.
        """
        strategy, step = self.strategy, steps[-1]
        action, factor = "update", None
        if not self._accepts(step):
            action = "dropped"
            logs = self.updates.count(result.changes)
            strategy.report.add(step.worker, strategy.version - step.version, None)
        elif (whole := self._enough(step, result.gradients, batches)) is None:
            action = "kept"
            logs = self.updates.change(result.changes, result.assigned)
        else:
            staleness = strategy.version - whole.version
            factor = strategy.policies.learning_rate_factor(staleness)
            read = step.values if strategy.policies.compensates else []
            logs, applied = self.updates.update(
                whole.gradients, result.changes, result.assigned, tf.constant(factor), read
            )
            if applied is None or applied:
                self.values = self.updates.values()
                strategy.version += 1
                strategy.report.add(step.worker, staleness, factor)
            else:
                action, factor = "skipped", None
        strategy.journal.note(action, steps, strategy.version, factor)
        self._logs = self.completed(result.logs, logs)
        self._uncounted += batches

    def _enough(self, step: Step, gradients: Gradients, batches: int) -> Kept | None:
        """The gradients of an update; None if these are kept until there are more.

        Those of a whole number of `accumulation_steps` are an update by themselves, also while
        others are kept, which the last batches of an epoch left.
        """
        now = Kept(gradients, step.worker, step.version, batches)
        if batches == self._accumulates:
            return now
        if not self.updates.are_finite(gradients):
            self.updates.note_overflow()
            return None
        kept, self._kept = self._kept, None
        if kept is not None and not self._accepts(kept):
            self.strategy.report.add(kept.worker, self.strategy.version - kept.version, None)
            kept = None
        if kept is not None:
            total, _ = self.updates.add([(kept.gradients, {}), (gradients, {})])
            now = Kept(total, step.worker, min(kept.version, step.version), kept.batches + batches)
        if now.batches < self._accumulates:
            self.updates.note_finite()
            self._kept = now
            return None
        mean = self.updates.scaled(now.gradients, self._accumulates / now.batches)
        return now._replace(gradients=mean)
