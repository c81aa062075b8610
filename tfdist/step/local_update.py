"""One step of a replica that trains apart: it updates its own copy of the variables."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.exchange import Packing
from tfdist.step.local_context import index_of_replica
from tfdist.step.local_rounds import LocalRounds
from tfdist.step.loss_scale import LossScale
from tfdist.step.replica import Apart, ReplicaStep
from tfdist.step.spans import timed
from tfdist.step.update import Update
from tfdist.structures import Structure


class LocalUpdate:
    """Stages 2, 4 and 5 without the others: accumulates, clips and updates.

    A replica without samples makes no step: it counts no update, and its optimizer's state stays.
    The same holds for a replica whose gradients overflow; only this replica halves its loss scale.
    All replicas count together where they are in the round, so that they meet at the same step.

    Args:
        rounds: where the replicas meet.
        update: updates the variables.
        loss_scale: the loss scale of the optimizer.
        accumulator: the gradients that wait for an update; None without accumulation.
    """

    def __init__(
        self,
        rounds: LocalRounds,
        update: Update,
        loss_scale: LossScale,
        accumulator: GradientAccumulator | None,
    ):
        self._rounds = rounds
        self._update = update
        self._loss_scale = loss_scale
        self._accumulator = accumulator

    def run(
        self,
        step: ReplicaStep,
        packing: Packing,
        packed: list,
        variables: list[keras.Variable],
        chosen: Callable[[Sequence[Structure]], list],
    ) -> None:
        """One step of this replica; in replica context.

        Args:
            step: the step that runs, of a replica that trains apart.
            packing: the layout of the gradients.
            packed: the packed gradients.
            variables: the variables to update.
            chosen: picks the gradients of `variables` from the unpacked ones; None for none.
        """
        with self._noted(step):
            assert step.apart is not None
            if self._rounds not in step.notes.rounds:
                step.notes.rounds.append(self._rounds)
                if self._rounds not in step.notes.begun:
                    values = {id(v): tf.convert_to_tensor(v.value) for v in self._rounds.variables}
                    step.notes.at_update.update(values)
            nonempty = step.share.nonempty
            has_samples = None if nonempty is None else nonempty > 0
            finite = self._loss_scale.all_finite(packed)
            ready = self._count_samples(step.apart, has_samples, finite)
            meet = tf.distribute.get_replica_context().merge_call
            if self._accumulator is not None:
                # Noted for each micro-batch: an eager step updates only where an update is due.
                self._rounds.note_trained(chosen(packing.unpack(packed)), variables)
                used = _both(has_samples, finite)
                self._accumulator.add(packed, used)
                one = tf.ones([], tf.int64)
                self._rounds.state.micro_batches.assign_add(
                    one if used is None else tf.cast(used, tf.int64)
                )
                _where(has_samples, lambda: self._note_scale(finite, lambda: None))

                def use(means: list, has_any: tf.Tensor) -> None:
                    gradients = chosen(packing.unpack(means))
                    _where(has_any, lambda: self._apply(gradients, variables))

                meet(self._update_if_due, args=(use, ready))
                return
            gradients = chosen(packing.unpack(packed))
            self._rounds.note_trained(gradients, variables)
            _where(
                has_samples,
                lambda: self._note_scale(finite, lambda: self._apply(gradients, variables)),
            )
            meet(self._rounds.count, args=(ready,))

    @staticmethod
    @contextlib.contextmanager
    def _noted(step: ReplicaStep) -> Iterator[None]:
        """Notes which operations of the graph are the update."""
        start = compat.operations_so_far()
        yield
        graph = tf.compat.v1.get_default_graph()
        step.notes.updates.append((graph, start, compat.operations_so_far()))

    def _count_samples(
        self, apart: Apart, has_samples: tf.Tensor | None, finite: tf.Tensor | None
    ) -> tf.Tensor:
        """Counts the samples that this replica uses; returns a tensor that needs the batch."""
        samples = tf.cast(apart.samples, tf.float32)
        used = _both(has_samples, finite)
        if used is not None:
            samples = tf.where(used, samples, tf.zeros_like(samples))
        state = self._rounds.state
        if self._accumulator is None:
            state.count_used(samples)
        else:
            state.waiting.assign_add(samples)
        return tf.identity(samples)

    def _note_scale(self, finite: tf.Tensor | None, use: Callable[[], None]) -> None:
        """Calls `use` if gradients are finite, and updates this replica's loss scale."""

        def used() -> None:
            use()
            self._loss_scale.note(is_finite=True)

        if finite is None:
            use()
        else:
            tf.cond(finite, used, lambda: self._loss_scale.note(is_finite=False))

    def _apply(self, gradients: list, variables: list[keras.Variable]) -> None:
        with compat.updating_own_copy(index_of_replica()):
            timed("update", gradients, lambda: self._update.apply(gradients, variables))

    def _update_if_due(
        self,
        strategy: tf.distribute.Strategy,
        use: Callable[[list, tf.Tensor], None],
        ready: Structure,
    ) -> None:
        """Counts the micro-batch, and updates at the k-th; in cross-replica context."""
        accumulator = self._accumulator
        assert accumulator is not None
        state = self._rounds.state

        def update(use: Callable[[list, tf.Tensor], None]) -> None:
            number, samples = state.micro_batches.read_value(), state.waiting.read_value()
            means = accumulator.take(tf.maximum(number, 1))
            state.micro_batches.assign(tf.zeros_like(number))
            state.count_used(samples)
            state.waiting.assign(tf.zeros_like(samples))
            use(means, number > 0)

        def update_all() -> None:
            strategy.extended.call_for_each_replica(update, args=(use,))
            self._rounds.count(strategy, ready)

        parts = strategy.experimental_local_results(ready)
        with tf.control_dependencies([] if tf.executing_eagerly() else list(parts)):
            due, number = accumulator.count()
            state.begun.assign(tf.ones_like(number))
        tf.cond(due, update_all, lambda: None)


def _both(first: tf.Tensor | None, second: tf.Tensor | None) -> tf.Tensor | None:
    """Whether both hold; None for true."""
    if first is None or second is None:
        return second if first is None else first
    return tf.logical_and(first, second)


def _where(condition: tf.Tensor | None, act: Callable[[], None]) -> None:
    """Calls `act` on a replica where `condition` holds; None for true."""
    if condition is None:
        act()
    else:
        tf.cond(condition, act, lambda: None)
