"""Work items on the workers: who does the next one, who waits, what happens to a lost worker.

Each worker has a thread in the chief. The thread takes batches and lets the worker compute with the
latest values. Then it waits until the main thread has used the gradients. All updates are made in
the main thread.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from tfdist import compat
from tfdist.parameter_server.chief.turns import Limits, Turns
from tfdist.parameter_server.data.batch import Batch
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.work_item import Compute, Snapshot, WorkItem

# A worker that is lost and comes back this often, and finishes no work item in between, has another
# problem.
_MOST_LOSSES = 5


class WorkersLostError(Exception):
    """All workers are lost, and none came back within the timeout."""


class Scheduler:
    """Lets the workers do the work items of one run, such as an epoch.

    Args:
        workers: the number of workers.
        source: where their batches come from.
        compute: called in a worker's thread with a work item and `self.read`.
        limits: how much work the workers may begin.
        lost: the workers that are lost already. The set is kept up to date for the next run.
        on_change: called with a worker's index and the error when the worker is lost, and with the
            index and None when the worker is back.
        on_wait: called with a worker's index when the worker has to wait before it begins, and when
            its gradients are held back.
        settle: called with work items that end early, and whether the run ends: takes away those of
            their batches that were used.
    """

    def __init__(
        self,
        workers: int,
        source: Source,
        compute: Compute,
        limits: Limits,
        lost: set[int],
        on_change: Callable[[int, Exception | None], None],
        on_wait: Callable[[int], None],
        settle: Callable[[Sequence[WorkItem], bool], None] = lambda items, close: None,
    ):
        self._current = Snapshot(0, {})
        self._workers = workers
        self._source = source
        self._compute = compute
        self._turns = Turns(workers, limits, lost)
        self._on_change = on_change
        self._on_wait = on_wait
        self._settle = settle
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        self._updating = False
        self._begun = 0
        self._lost = lost
        self._losses: collections.Counter[int] = collections.Counter()
        self._running: dict[int, WorkItem] = {}
        self._ready: list[WorkItem] = []
        self._unfinished: list[WorkItem] = []
        self._error: Exception | None = None

    # --- in the main thread ---------------------------------------------------------------------

    def start(self, coordinator: compat.Coordinator, current: Snapshot) -> None:
        """Lets the workers begin.

        Args:
            coordinator: calls functions in the threads of the workers.
            current: the weights.
        """
        self._current = current
        for worker in tuple(self._lost):
            self._source.leave(worker)
        compat.run_on_workers(coordinator, self._work, self._workers)

    def next(
        self, may_use: Callable[[Sequence[WorkItem]], bool], timeout: float
    ) -> WorkItem | None:
        """Waits for a finished work item. Until it is released, nobody reads values.

        Args:
            may_use: whether a work item may be used before others that are under way; called with
                these others.
            timeout: for how many seconds all workers may be lost before an error is raised.

        Returns:
            The work item; None when there are no more.

        Raises:
            WorkersLostError: when all workers are lost.
            Exception: what a worker raised.
        """
        with self._changed:
            end = None
            while True:
                if self._error is not None:
                    raise self._error
                for item in self._ready:
                    others = [other for other in self._running.values() if other is not item]
                    if may_use([other for other in others if other.version >= 0]):
                        self._ready.remove(item)
                        self._updating = True
                        return item
                    if not item.held_back:
                        item.held_back = True
                        self._on_wait(item.worker)
                if not self._turns.all_are_lost():
                    end = None
                    if self._turns.is_over():
                        return None
                elif end is None:
                    end = time.monotonic() + timeout
                elif time.monotonic() >= end:
                    raise WorkersLostError
                # Whoever is lost while it still computes for an earlier run wakes nobody here.
                left = 1.0 if end is None else end - time.monotonic()
                self._changed.wait(min(max(0.0, left), 1.0))

    def release(self, item: WorkItem, current: Snapshot) -> None:
        """Lets the worker go on, after its work item was used.

        Args:
            item: the work item.
            current: the weights after its use.
        """
        with self._changed:
            self._current = current
            self._updating = False
            self._turns.finish(item.worker)
            self._losses[item.worker] = 0
            self._forget(item)
            item.released = True
            self._changed.notify_all()

    def ask_again(self) -> None:
        """Lets workers ask again whether they may start, because the answer may have changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the run. Unfinished work items are not used, and their batches are given back."""
        self.halt()
        unfinished, self._unfinished = self._unfinished, []
        self._settle(unfinished, True)
        for batch in reversed([batch for item in unfinished for batch in item.batches]):
            self._source.give_back(batch)

    def halt(self) -> None:
        """Lets the workers begin nothing more; `close` must follow."""
        self._source.close()
        with self._changed:
            self._closed = True
            unfinished = [*self._unfinished, *self._running.values(), *self._ready]
            self._unfinished = [*{id(item): item for item in unfinished}.values()]
            self._running.clear()
            self._ready.clear()
            self._changed.notify_all()

    def _forget(self, item: WorkItem) -> None:
        if self._running.get(item.worker) is item:
            del self._running[item.worker]

    # --- in the workers' threads ------------------------------------------------------------------

    def _work(self, worker: int, device: str) -> None:
        """A worker's part in the run; `device` is the present one already."""
        del device
        with self._changed:
            if self._turns.is_back(worker):
                self._on_change(worker, None)
        item = None
        try:
            while wanted := self._wait_for_turn(worker):
                item = self._take(worker, wanted)
                if item is not None:
                    self._compute(item, self.read)
                    self._hand_over(item)
                item = None
        except Exception as error:
            if self._fail(worker, item, error):
                raise

    def _wait_for_turn(self, worker: int) -> int:
        """How many batches the worker may take; 0 when the run has ended."""
        waited = False
        with self._changed:
            while not self._closed and self._error is None:
                if self._turns.is_something_left_for(worker):
                    if self._turns.may_begin(worker):
                        return self._turns.begin(worker)
                    if not waited:
                        waited = True
                        self._on_wait(worker)
                self._changed.wait()
        return 0

    def _take(self, worker: int, wanted: int) -> WorkItem | None:
        """The worker's next work item, with at most `wanted` batches; None if there are none."""
        item = WorkItem(worker, [], 0)
        returns = self._turns.returns
        try:
            while len(item.batches) < wanted:
                batch = self._source.take(worker)
                if batch is None:
                    break
                item.batches.append(batch)
        except Exception:
            self._return(item.batches, wanted)
            raise
        with self._changed:
            self._return([], wanted - len(item.batches))
            if not item.batches:
                self._turns.drop()
                if returns == self._turns.returns:  # else there may be batches by now
                    self._turns.find_no_data(worker)
                self._changed.notify_all()
                return None
            if self._closed:
                self._return(item.batches, 0)
                return None
            item.number = self._begun
            self._begun += len(item.batches)
            self._running[worker] = item
        return item

    def _return(self, batches: Sequence[Batch], count: int) -> None:
        """Takes back batches, and the right to `count` of them."""
        for batch in reversed(batches):
            self._source.give_back(batch)
        with self._changed:
            self._turns.give_back(count)
            if batches:
                self._turns.let_all_ask()
            self._changed.notify_all()

    def read(self, item: WorkItem) -> None:
        """Gives the work item the latest values. If an update is under way, waits for its end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._updating or self._closed)
            item.version, item.values = self._current

    def _fail(self, worker: int, item: WorkItem | None, error: Exception) -> bool:
        """Notes the error. Returns whether TensorFlow must see it, to wait for a lost worker."""
        is_lost = compat.is_lost_worker(error)
        with self._changed:
            if item is not None:
                self._forget(item)
            early = [] if self._closed or item is None else [item]
        if is_lost:
            try:
                self._settle(early, False)
            except Exception as failed:  # such as when the parameter server that knows is lost too
                is_lost, error = False, failed
        if not is_lost:
            with self._changed:
                self._unfinished += early
        else:
            unused = [batch for item in early for batch in item.batches]
            self._return(unused, len(unused))
            self._source.leave(worker)
        with self._changed:
            if is_lost and item is not None and item.made:
                self._ready.append(dataclasses.replace(item, batches=[]))
            else:
                self._turns.drop()
            self._losses[worker] += 1
            if is_lost and self._losses[worker] <= _MOST_LOSSES:
                self._turns.lose(worker)
                self._turns.let_all_ask()
                self._on_change(worker, error)
            elif not self._closed:
                self._error = self._error or error
                if item is not None or self._source.on_workers:
                    error.worker = worker  # type: ignore[attr-defined]
                is_lost = False
            self._changed.notify_all()
        return is_lost

    def _hand_over(self, item: WorkItem) -> None:
        """Waits until the main thread has used the work item."""
        with self._changed:
            self._ready.append(item)
            self._changed.notify_all()
            self._changed.wait_for(lambda: item.released or self._closed)
