"""What workers and the chief do in some steps, as events of the Trace Event Format."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdist.callbacks.trace import Span, event, named
from tfdist.engines.clocks import Clock
from tfdist.parameter_server.noted import Noted, Times, clock_there
from tfdist.parameter_server.worker.points import (
    ASKED,
    COMPUTED,
    ENCODED,
    LOCKED,
    PULLED,
    PUSHED,
    READY,
    UPDATED,
)

_PARTS = (
    (PULLED, "pull"),
    (READY, "wait for data"),
    (COMPUTED, "compute"),
    (ENCODED, "encode"),
    (PUSHED, "push"),
)
"""The parts of a worker's step in their order, by the points where they end."""

_SECONDS = 30.0
"""How old the comparison of a clock may be. In this time clocks drift by less than 1 ms."""


class ServerSpans:
    """Notes what happens while steps in a range run.

    Its processes are the workers by their indices, then the chief, then the first parameter server.
    Threads of workers ask for clocks; all else is called in the main thread.

    Args:
        first: the first step to note.
        end: the step before which to stop.
        workers: the number of workers.
    """

    def __init__(self, first: int, end: int, workers: int):
        self._first, self._end = first, end
        self._workers = workers
        self._step = 0
        self._steps: list[tuple[int, int, Times]] = []
        self._updates: list[tuple[int, Span, dict[str, int]]] = []  # the first is the process
        self._clocks: dict[int, Clock] = {}
        self._compared: dict[int, float] = {}
        self._errors = [0.0]
        self._comparing = [threading.Lock() for _ in range(workers + 2)]

    def begin_step(self, step: int) -> None:
        """Called when Keras begins with a step: its number from 0, over all epochs."""
        self._step = step

    def end_step(self) -> None:
        """Called when the step has ended."""
        self._step += 1

    # --- in the workers' threads ----------------------------------------------------------------

    def noted(self, worker: int, server: str | None = None) -> Noted:
        """What notes the points of a work item, in the thread and on the device of its worker.

        When a worker comes here first, its clock is compared to the chief's, before it reads
        weights; and again every half minute, as clocks drift.

        Args:
            worker: the index of the worker.
            server: the device of the first parameter server, if points are noted there; else None.
        """
        own = self._clock(worker)
        if server is None:
            return Noted(own)
        with tf.device(server):
            return Noted(own, self._clock(self._workers + 1))

    def _clock(self, process: int) -> Clock:
        """The clock of the process of the present device."""
        with self._comparing[process]:  # all workers ask the first server
            clock, now = self._clocks.get(process), time.monotonic()
            if clock is None or now > self._compared[process] + _SECONDS:
                clock = clock_there()
                self._errors.append(clock.error_seconds)
                self._compared[process], self._clocks[process] = now, clock
            return clock

    def forget(self, worker: int) -> None:
        """Called when a worker is lost: it may come back on another machine."""
        self._clocks.pop(worker, None)

    # --- in the main thread ---------------------------------------------------------------------

    def add_step(self, ahead: int, worker: int, times: Times) -> None:
        """Adds a step of a worker whose gradients are used.

        Args:
            ahead: how many steps after the one that Keras runs it is.
            worker: the index of the worker.
            times: the points that were reached.
        """
        step = self._step + ahead
        if not self._first <= step < self._end:
            return
        self._steps.append((step, worker, times))

    def add_update(self, ahead: int, worker: int, staleness: int, begun: int, ended: int) -> None:
        """Adds an update that the chief has made; times in nanoseconds, see `add_step`."""
        self._add_update(self._workers, ahead, worker, staleness, Span("update", begun, ended))

    def add_made(self, ahead: int, worker: int, staleness: int, times: Times) -> None:
        """Adds a step of a worker that has made the update itself; see `add_step`."""
        self.add_step(ahead, worker, times)
        made = Span("update", times[LOCKED], times[UPDATED])
        self._add_update(self._workers + 1, ahead, worker, staleness, made)

    def _add_update(
        self, process: int, ahead: int, worker: int, staleness: int, span: Span
    ) -> None:
        step = self._step + ahead
        if self._first <= step < self._end:
            args = {"step": step, "worker": worker, "staleness": staleness}
            self._updates.append((process, span, args))

    def events(self, ended: int) -> Iterator[dict[str, Any]]:
        """Names of processes and threads, and spans with times in microseconds.

        Args:
            ended: how many steps Keras has ended. What workers have done for others is left out.
        """
        names = [f"worker {worker}" for worker in range(self._workers)]
        for process, name in enumerate([*names, "chief", "ps 0"]):
            used = process <= self._workers or process in self._clocks
            if used:
                yield named("process_name", process, 0, name)
                is_worker = process < self._workers
                yield named("thread_name", process, 0, "steps" if is_worker else "updates")
        for step, worker, times in self._steps:
            if step < ended:
                for span in _spans(times):
                    yield event(worker, 0, span, {"step": step})
        for process, span, args in self._updates:
            if args["step"] < ended:
                yield event(process, 0, span, args)

    def metadata(self) -> dict[str, Any]:
        """How far the clocks of the processes are ahead of the chief's; None if nobody knows."""
        known = {**self._clocks, self._workers: Clock(0.0, 0.0)}
        offsets = [
            known[process].offset_seconds if process in known else None
            for process in range(self._workers + 1 + (self._workers + 1 in known))
        ]
        return {
            "clock_offset_seconds": offsets,
            "largest_clock_error_seconds": max(self._errors),
        }


def _spans(times: Times) -> Iterator[Span]:
    """A worker's step, and its parts; the chief's clock begins it, so it may be a little ahead."""
    begun = times[ASKED]
    parts = []
    for point, name in _PARTS:
        if point in times:
            ended = max(begun, times[point])
            parts.append(Span(name, begun, ended))
            begun = ended
    yield Span("step", times[ASKED], begun)
    yield from parts


class NotesSpans:
    """Mixed into a strategy of parameter servers.

    Attributes:
        server_spans: notes what happens in steps; None if nobody wants to know.
        num_workers: the number of workers.
    """

    server_spans: ServerSpans | None = None
    num_workers: int

    def note_spans(self, first: int, end: int) -> ServerSpans:
        """Begins to note what happens in the steps from `first` until before `end` of a `fit`."""
        self.server_spans = ServerSpans(first, end, self.num_workers)
        return self.server_spans

    @contextlib.contextmanager
    def spans_of_fit(self) -> Iterator[None]:
        """Surrounds a `fit`: nobody wants to know what happens in another one."""
        outer, self.server_spans = self.server_spans, None
        try:
            yield
        finally:
            self.server_spans = outer
