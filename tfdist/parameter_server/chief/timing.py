"""A train function whose steps can be watched: who does what, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.parameter_server.chief.pulling import PullingFunction
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.work_item import Made, WorkItem
from tfdist.parameter_server.worker.points import Note
from tfdist.structures import Structure


class TimedFunction(PullingFunction):
    """Lets the strategy's `server_spans`, if there are any, note what happens."""

    _uncounted = 0
    """The number of batches that were used, but that no call of Keras has counted yet."""
    _taken = 0

    def _trace(self, source: Source, spec: Structure) -> None:
        super()._trace(source, spec)
        if self.strategy.server_spans is not None:
            self._on_worker.prepare(self.values, self._seeds, spec, timed=True)

    # --- in the workers' threads ----------------------------------------------------------------

    def _compute(self, item: WorkItem, read: Callable[[WorkItem], None]) -> None:
        self._begin_to_note(item)
        super()._compute(item, read)

    def _begin_to_note(self, item: WorkItem, server: str | None = None) -> None:
        """Lets a work item note its points, if somebody asks; see `ServerSpans.noted`."""
        spans = self.strategy.server_spans
        if spans is not None:
            item.noted = spans.noted(item.worker, server)

    def _values_for(self, item: WorkItem) -> dict[str, tf.Tensor]:
        if item.noted is not None:
            item.noted.begin()
        return super()._values_for(item)

    def _note_for(self, item: WorkItem) -> Note | None:
        return None if item.noted is None else item.noted.reached

    def _note(self, worker: int, error: Exception | None) -> None:
        super()._note(worker, error)
        spans = self.strategy.server_spans
        if error is not None and spans is not None:
            spans.forget(worker)

    # --- in the main thread ---------------------------------------------------------------------

    def next(
        self, may_use: Callable[[Sequence[WorkItem]], bool] = lambda others: True
    ) -> WorkItem | None:
        """The next finished work item; None when there are no more. See `Schedule.next`."""
        item = super().next(may_use)
        self._taken = time.time_ns()
        return item

    def _note_used(self, items: Sequence[WorkItem]) -> None:
        """Notes the steps of work items whose gradients are used now."""
        spans = self.strategy.server_spans
        if spans is None:
            return
        for item in items:
            for place, times in enumerate(item.noted.steps if item.noted else ()):
                spans.add_step(self._uncounted + place, item.worker, times)

    def _note_update(
        self, results: dict[str, tf.Tensor], worker: int, staleness: int, batches: int
    ) -> None:
        """Notes an update with the gradients that were taken last; waits until it is made.

        Args:
            results: the results of the metrics after it.
            worker: the worker that computed the last of the gradients.
            staleness: how stale the gradients were.
            batches: the number of batches of which this is the last one's step.
        """
        spans = self.strategy.server_spans
        if spans is None:
            return
        for result in tf.nest.flatten(results, expand_composites=True):
            result.numpy()
        ahead = self._uncounted + batches - 1
        spans.add_update(ahead, worker, staleness, self._taken, time.time_ns())

    def _note_made(self, made: Made, worker: int) -> None:
        """Notes an update that a worker has made itself."""
        spans = self.strategy.server_spans
        if spans is not None and made.times is not None:
            spans.add_made(self._uncounted, worker, made.staleness, made.times)
