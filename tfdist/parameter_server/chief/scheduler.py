"""Steps on the workers: who does the next one, who waits, and what happens when one is lost.

Each worker has a thread in the chief. It takes batches, lets the worker compute with the latest
values, and waits until the main thread, in which all updates are made, has used the result.
"""

from __future__ import annotations

import collections
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tfdist import compat
from tfdist.parameter_server.data.sources import Batch, Source
from tfdist.parameter_server.work_item import Step

# A worker that is lost and back so often, without a step in between, has another problem.
_MOST_LOSSES = 5


class WorkersLostError(Exception):
    """All workers are lost, for longer than is waited for."""


class Steps:
    """The steps of one run, such as an epoch.

    Args:
        workers: the number of workers.
        source: where their batches come from.
        compute: called in a worker's thread with a step and `self.read`; sets the step's result.
        may_start: whether a worker that has finished so many more steps than the slowest may start
            one, with so many of others under way.
        budget: the number of batches; None for as many as there are.
        per_step: how many of them a worker takes at a time.
        first_step: how many the first step takes.
        max_pending: the number of steps that may be under way at a time.
        lost: the workers that are lost already; kept up to date, for the next run.
        on_change: called when a worker is lost, with its index and the error, or is back, with its
            index and None.
        on_wait: called with a worker's index when it has to wait before a step, and when the result
            of its step is held back.
    """

    def __init__(
        self,
        workers: int,
        source: Source,
        compute: Callable[[Step, Callable[[Step], None]], None],
        may_start: Callable[[int, int], bool],
        budget: int | None,
        per_step: int,
        first_step: int,
        max_pending: int,
        lost: set[int],
        on_change: Callable[[int, Exception | None], None],
        on_wait: Callable[[int], None],
    ):
        self.current: tuple[int, Any] = (0, None)
        self._workers = workers
        self._source = source
        self._compute = compute
        self._may_start = may_start
        self._left = budget
        self._sizes = itertools.chain([first_step], itertools.repeat(per_step))
        self._max_pending = max_pending
        self._under_way = 0
        self._on_change = on_change
        self._on_wait = on_wait
        self._changed = threading.Condition(threading.RLock())
        self._closed = False
        self._updating = False
        self._begun = 0
        self._finished = dict.fromkeys(range(workers), 0)
        self._lost = lost
        self._returns = 0
        self._losses: collections.Counter[int] = collections.Counter()
        self._without_data: set[int] = set()
        self._running: dict[int, Step] = {}
        self._ready: list[Step] = []
        self._error: Exception | None = None

    # --- in the main thread ---------------------------------------------------------------------

    def start(self, coordinator: Any, current: tuple[int, Any]) -> None:
        """Lets the workers begin.

        Args:
            coordinator: the `ClusterCoordinator`.
            current: the number of updates so far, and the values after them.
        """
        self.current = current
        for worker in tuple(self._lost):
            self._source.leave(worker)
        compat.run_on_workers(coordinator, self._work, self._workers)

    def next(self, may_use: Callable[[Sequence[Step]], bool], timeout: float) -> Step | None:
        """Waits for a step that is done; no other reads values until it is released.

        Args:
            may_use: whether it may be used before the steps that are given, which are under way.
            timeout: seconds after which it is an error that all workers are lost.

        Returns:
            The step; None when there are no more.

        Raises:
            WorkersLostError: when all workers are lost.
            Exception: what a step raised.
        """
        with self._changed:
            end = None
            while True:
                if self._error is not None:
                    raise self._error
                for step in self._ready:
                    others = [other for other in self._running.values() if other is not step]
                    if may_use([other for other in others if other.version >= 0]):
                        self._ready.remove(step)
                        self._updating = True
                        return step
                    if not step.held_back:
                        step.held_back = True
                        self._on_wait(step.worker)
                if len(self._lost) < self._workers:
                    end = None
                    if self._under_way == 0 and self._nothing_left():
                        return None
                elif end is None:
                    end = time.monotonic() + timeout
                elif time.monotonic() >= end:
                    raise WorkersLostError
                self._changed.wait(None if end is None else max(0.0, end - time.monotonic()))

    def _nothing_left(self) -> bool:
        absent = self._lost | self._without_data
        return self._left == 0 or len(absent) == self._workers

    def release(self, step: Step, current: tuple[int, Any]) -> None:
        """Lets the worker go on, after its step was used.

        Args:
            step: the step.
            current: the number of updates so far, and the values after them.
        """
        with self._changed:
            self.current = current
            self._updating = False
            self._under_way -= 1
            self._finished[step.worker] += 1
            self._losses[step.worker] = 0
            self._running.pop(step.worker, None)
            step.released = True
            self._changed.notify_all()

    def ask_again(self) -> None:
        """Lets workers ask again whether they may start, as that has changed."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the run; what workers still compute is not used, and its batches are given back."""
        self._source.close()
        with self._changed:
            self._closed = True
            unused = [batch for step in self._running.values() for batch in step.batches]
            self._running.clear()
            self._changed.notify_all()
        for batch in reversed(unused):
            self._source.give_back(batch)

    # --- in the workers' threads ------------------------------------------------------------------

    def _work(self, worker: int, device: str) -> None:
        """A worker's part in the run; `device` is the present one already."""
        del device
        with self._changed:
            if worker in self._lost:
                self._level([worker])
                self._lost.discard(worker)
                self._without_data.discard(worker)
                self._on_change(worker, None)
        step = None
        try:
            while wanted := self._wait_for_turn(worker):
                step = self._take(worker, wanted)
                if step is not None:
                    self._compute(step, self.read)
                    self._hand_over(step)
                step = None
        except Exception as error:
            if self._fail(worker, step, error):
                raise

    def _slowest(self) -> int:
        absent = self._lost | self._without_data
        there = [count for worker, count in self._finished.items() if worker not in absent]
        return min(there, default=max(self._finished.values()))

    def _level(self, absent: Iterable[int]) -> None:
        """Lets workers that come back count as level with the slowest of those that are there.

        Else all others would have to wait until they have made as many steps.
        """
        slowest = self._slowest()
        for worker in absent:
            self._finished[worker] = max(self._finished[worker], slowest)

    def _let_all_ask(self) -> None:
        """Lets workers ask for data that found none before."""
        self._returns += 1
        self._level(self._without_data)
        self._without_data.clear()

    def _wait_for_turn(self, worker: int) -> int:
        """How many batches the worker may take; 0 when the run has ended."""
        waited = False
        with self._changed:
            while not self._closed and self._error is None:
                if worker not in self._without_data and self._left != 0:
                    if self._under_way < self._max_pending and self._may_start(
                        self._finished[worker] - self._slowest(), self._under_way
                    ):
                        self._under_way += 1
                        wanted = next(self._sizes)
                        if self._left is not None:
                            wanted = min(wanted, self._left)
                            self._left -= wanted
                        return wanted
                    elif not waited:
                        waited = True
                        self._on_wait(worker)
                self._changed.wait()
        return 0

    def _take(self, worker: int, wanted: int) -> Step | None:
        """The worker's next step with as many batches as there are; None without any."""
        step = Step(worker, [], 0)
        returns = self._returns
        try:
            while len(step.batches) < wanted:
                batch = self._source.take(worker)
                if batch is None:
                    break
                step.batches.append(batch)
        except Exception:
            self._return(step.batches, wanted)
            raise
        with self._changed:
            self._return([], wanted - len(step.batches))
            if not step.batches:
                self._under_way -= 1
                if returns == self._returns:  # else there may be some by now
                    self._without_data.add(worker)
                self._changed.notify_all()
                return None
            if self._closed:
                self._return(step.batches, 0)
                return None
            step.number = self._begun
            self._begun += len(step.batches)
            self._running[worker] = step
        return step

    def _return(self, batches: Sequence[Batch], count: int) -> None:
        """Takes back batches, and the right to `count` of them."""
        for batch in reversed(batches):
            self._source.give_back(batch)
        with self._changed:
            if self._left is not None:
                self._left += count
            if batches:
                self._let_all_ask()
            self._changed.notify_all()

    def read(self, step: Step) -> None:
        """Gives the step the latest values: those of an update that is being made, when it is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._updating or self._closed)
            step.version, step.values = self.current

    def _fail(self, worker: int, step: Step | None, error: Exception) -> bool:
        """Notes the error; whether TensorFlow has to know of it, as it waits for lost workers."""
        is_lost = compat.is_lost_worker(error)
        with self._changed:
            self._running.pop(worker, None)
            unused = [] if self._closed or step is None else step.batches
        if is_lost:
            self._return(unused, len(unused))
            self._source.leave(worker)
        with self._changed:
            self._under_way -= 1
            self._losses[worker] += 1
            if is_lost and self._losses[worker] <= _MOST_LOSSES:
                self._lost.add(worker)
                self._let_all_ask()
                self._on_change(worker, error)
            elif not self._closed:
                self._error = self._error or error
                if step is not None or self._source.on_workers:
                    error.worker = worker  # type: ignore[attr-defined]
                is_lost = False
            self._changed.notify_all()
        return is_lost

    def _hand_over(self, step: Step) -> None:
        """Waits until the main thread has used the step."""
        with self._changed:
            self._ready.append(step)
            self._changed.notify_all()
            self._changed.wait_for(lambda: step.released or self._closed)
