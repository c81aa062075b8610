"""What a worker runs: a step. Its gradients go to the parameter servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfdist.parameter_server.data.batch import Batch, BatchPart
from tfdist.parameter_server.gradients import Gradients, Outcome, add
from tfdist.parameter_server.packing import pack, pack_all, unpack
from tfdist.parameter_server.worker.functional_step import FunctionalStep, is_summed
from tfdist.parameter_server.worker.points import (
    COMPUTED,
    OF_STEP,
    PUSHED,
    Note,
    Points,
    reached,
)
from tfdist.parameter_server.worker.traced import Traced
from tfdist.step import replica
from tfdist.step.fixed_rows import summed_apart
from tfdist.step.logs import contributions
from tfdist.step.rows import are_summed
from tfdist.step.weighting import Share, weigh
from tfdist.structures import Structure


class StepOnWorker:
    """The function that workers run. Its results are placed where they will be used.

    Args:
        step: the model's step.
        micro_batches: the number of batches that an update is the mean of.
        parts: the number of parts of a global batch; 0 where workers get whole batches.
        compresses: whether gradients stay on the worker, which compresses them first.
        drops: whether an update may be made without some parts, so that no part can be the one that
            says what counts once.
    """

    def __init__(
        self,
        step: FunctionalStep,
        micro_batches: int,
        parts: int,
        compresses: bool,
        drops: bool = False,
    ):
        self._step = step
        self._micro_batches = micro_batches
        self._parts = parts
        self._compresses = compresses
        self._drops = drops
        self.forget_traces()

    def forget_traces(self) -> None:
        """Lets the function be traced anew, with other variables behind the model's."""
        self._function = Traced(self._maybe_timed)

    def explore(self, spec: Structure) -> None:
        """Traces a step once, only to let the step note what it changes and which rows it reads.

        Args:
            spec: as for `prepare`.
        """
        parts = self._step.parts
        values = {
            str(place): tf.TensorSpec(parts[place].shape, parts[place].dtype)
            for place in self._step.copied
        }
        self.prepare(values, [tf.TensorSpec(s.shape, s.dtype) for s in self._step.seeds], spec)
        self.forget_traces()

    def prepare(
        self,
        values: Mapping[str, tf.Tensor],
        seeds: Sequence[np.ndarray],
        spec: Structure,
        timed: bool = False,
    ) -> None:
        """Traces a step on batches of the type `spec`; `timed` if it notes times."""
        part = None
        if self._parts:
            kinds = (tf.int32, tf.float32, tf.float32)
            part = BatchPart(*(tf.TensorSpec([], kind) for kind in kinds))
        push = self._micro_batches == 1
        self._function.prepare(values, seeds, spec, part, None, push, timed)

    def __call__(
        self,
        values: Mapping[str, tf.Tensor],
        seeds: Sequence[np.ndarray],
        batch: Batch,
        before: Outcome | None,
        push: bool,
        note: Note | None = None,
    ) -> Outcome:
        """Computes on the worker of the present device; see `_compute`.

        Args:
            values: as there, like all but `batch` and `note`.
            seeds: see there.
            batch: the batch.
            before: see there.
            push: see there.
            note: gets the times of the points in `OF_STEP`; None if nobody wants to know.
        """
        given = (values, seeds, batch.data, batch.part, before, push)
        if note is None:
            return self._function(*given, False)
        self._function.prepare(*given, False)  # in the first steps, as all wait for a new function
        outcome, times = self._function(*given, True)
        note(OF_STEP, times)
        return outcome

    def in_graph(
        self,
        values: Mapping[str, tf.Tensor],
        seeds: Sequence[tf.Tensor],
        batch: Structure,
        points: Points | None = None,
    ) -> Outcome:
        """Computes in the graph that is being traced; `points` notes times there."""
        return self._compute(values, seeds, batch, None, None, push=False, points=points)

    def _maybe_timed(
        self,
        values: Mapping[str, tf.Tensor],
        seeds: Sequence[tf.Tensor],
        batch: Structure,
        part: BatchPart | None,
        before: Outcome | None,
        push: bool,
        timed: bool,
    ) -> Outcome | tuple[Outcome, tf.Tensor]:
        points = Points() if timed else None
        outcome = self._compute(values, seeds, batch, part, before, push, points)
        return outcome if points is None else (outcome, points.vector(OF_STEP))

    def _compute(
        self,
        values: Mapping[str, tf.Tensor],
        seeds: Sequence[tf.Tensor],
        batch: Structure,
        part: BatchPart | None,
        before: Outcome | None,
        push: bool,
        points: Points | None = None,
    ) -> Outcome:
        """One batch.

        Args:
            values: the values of the step's variables, by the keys of `packing`.
            seeds: the values of the step's seeds.
            batch: the data, or an iterator whose next element they are.
            part: which part of a global batch the data are; None for a whole batch.
            before: the outcome of earlier batches of the same work item; None if there are none.
            push: whether the outcome leaves the worker.
            points: notes times; None if nobody wants to know.
        """
        running = self._replica_step(part)
        if isinstance(batch, tf.data.Iterator):
            batch = next(batch)
        whole = self._started(self._unpacked(values), before)
        if points is not None:
            whole, batch = points.at_hand(whole, batch)
        outcome = self._step(whole, seeds, batch, running)
        gradients, changes = outcome.gradients, outcome.changes
        assigned, logs = outcome.assigned, outcome.logs
        if self._micro_batches > 1:
            gradients = self._dense(gradients)
        if part is not None:
            gradients = self._summed_apart(gradients)
            changes = {key: self._of_part(key, c, part) for key, c in changes.items()}
            logs = contributions(logs, part.fraction)
        if before is not None:
            sums = [(before.gradients, before.changes), (gradients, changes)]
            gradients, changes = add(sums)
        reached(points, COMPUTED, (gradients, changes))
        if push:
            if not self._compresses:
                gradients = pack_all(gradients, self._step)
            changes, assigned = (pack(of, self._step.changed) for of in (changes, assigned))
            if not self._compresses:
                reached(points, PUSHED, (gradients, changes, assigned))
        return Outcome(gradients, changes, assigned, logs)

    def _dense(self, gradients: Gradients) -> Gradients:
        """Dense gradients for all variables: the mean over batches is dense too."""
        applied = [id(optimizer) for optimizer in self._step.optimizers]
        if len(set(applied)) < len(applied):
            names = [optimizer.name for optimizer in self._step.optimizers]
            raise ValueError(
                "With gradient accumulation an optimizer can be applied once per step. Apply all "
                "gradients at once, use an optimizer for each group of variables, or "
                f"`accumulation_steps=1`. Received: a step that applies {names}"
            )
        return {
            key: {
                str(place): tf.convert_to_tensor(
                    by_variable.get(str(place), tf.zeros(v.shape, v.dtype))
                )
                for place, v in enumerate(self._step.parts_for(key))
            }
            for key, by_variable in gradients.items()
        }

    def _summed_apart(self, gradients: Gradients) -> Gradients:
        """Gradients of a part of a batch that can be added to those of others."""
        return {
            key: of
            if are_summed(self._step.optimizers[int(key)].unwrap())
            else {place: summed_apart(gradient) for place, gradient in of.items()}
            for key, of in gradients.items()
        }

    def _of_part(self, key: str, change: tf.Tensor, part: BatchPart) -> tf.Tensor:
        """The contribution of a part of a global batch to the change of a variable.

        Sums, such as those of metrics, grow by what all parts add. Statistics become the mean over
        the samples. What each part counts, such as random numbers drawn, counts once: for the first
        part, or where it may be dropped, as `mean_of_arrived` chooses.
        """
        if is_summed(self._step.changed[int(key)]):
            return change
        if change.dtype.is_floating:
            return weigh(change, part.fraction)
        if self._drops:
            return change
        return change * tf.cast(tf.equal(part.index, 0), change.dtype)

    def _replica_step(self, part: BatchPart | None) -> replica.ReplicaStep:
        if part is None:
            share = Share(1.0 / self._micro_batches)
            return replica.ReplicaStep(0, 1, share, own_loop=False, exchanges=False)
        share = Share(part.fraction / self._micro_batches, part.nonempty)
        return replica.ReplicaStep(part.index, self._parts, share, own_loop=False, exchanges=False)

    def _unpacked(self, values: Mapping[str, tf.Tensor]) -> list[tf.Tensor | None]:
        by_place = unpack(values, self._step.parts)
        return [by_place.get(str(place)) for place in range(len(self._step.parts))]

    def _started(
        self, values: Sequence[tf.Tensor | None], before: Outcome | None
    ) -> list[tf.Tensor | None]:
        """The values, after the changes by earlier batches of the same work item."""
        if before is None:
            return list(values)
        changes = {id(self._step.changed[int(k)]): c for k, c in before.changes.items()}
        started: list[tf.Tensor | None] = []
        for part, value in zip(self._step.parts, values):
            if id(part) in changes:
                value = changes[id(part)] + (part.value if value is None else value)
            started.append(value)
        return started
