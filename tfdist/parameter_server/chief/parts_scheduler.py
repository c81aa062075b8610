"""Work items on parts of global batches, some of which turn out to be needed no more."""

from __future__ import annotations

from tfdist.parameter_server.chief.scheduler import Scheduler
from tfdist.parameter_server.data.batch import Batch
from tfdist.parameter_server.work_item import WorkItem


class PartsScheduler(Scheduler):
    """A `Scheduler` in which what a worker still computes may be needed no more."""

    _past = -1
    """The position of the last global batch of which no more parts are needed."""

    def abandon(self, item: WorkItem, whole_batch: bool = False) -> list[int]:
        """Lets go other work items on the same part: what their workers send is not used.

        Args:
            item: the work item that is used.
            whole_batch: whether to let go those on all other parts of the global batch, too.

        Returns:
            The workers of the others.
        """
        part = item.batches[0]

        def is_needless(other: Batch) -> bool:
            is_same = whole_batch or other.index == part.index
            return is_same and other.position == part.position

        with self._changed:
            if whole_batch:
                self._past = part.position
            others = [
                other
                for other in self._running.values()
                if other is not item and other not in self._ready and is_needless(other.batches[0])
            ]
            for other in others:
                other.abandoned = True
                self._turns.set_aside(other.worker)
                self._forget(other)
            self._changed.notify_all()
        return [other.worker for other in others]

    def _take(self, worker: int, wanted: int) -> WorkItem | None:
        item = super()._take(worker, wanted)
        with self._changed:
            if item is None or item.abandoned or item.batches[0].position > self._past:
                return item
            # The update was made while the worker took the part.
            self._forget(item)
            self._turns.drop()
            self._changed.notify_all()
        return None

    def _hand_over(self, item: WorkItem) -> None:
        with self._changed:
            if not item.abandoned:
                super()._hand_over(item)
                return
            self._turns.take_up_again(item.worker)
            self._turns.drop()
            self._losses[item.worker] = 0
            self._changed.notify_all()

    def _fail(self, worker: int, item: WorkItem | None, error: Exception) -> bool:
        with self._changed:
            if item is not None and item.abandoned:
                self._turns.take_up_again(worker)
                error.worker = worker  # type: ignore[attr-defined]
                item = None
            return super()._fail(worker, item, error)
