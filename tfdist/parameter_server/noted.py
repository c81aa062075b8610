"""When the worker of a work item has reached points of its steps, by the chief's clock."""

from __future__ import annotations

import time
from collections.abc import Sequence

import tensorflow as tf

from tfdist.engines.clocks import Clock, Interval, clock_of
from tfdist.parameter_server.worker.points import ASKED, ON_SERVER, PULLED

Times = dict[str, int]
"""When the points of a step were reached, in nanoseconds, by their names."""

_ERROR = 1e-3  # seconds
_LEAST, _MOST = 20, 400


class Noted:
    """The points of the steps of a work item.

    The thread of its worker notes them, and afterwards the main thread uses them.

    Args:
        worker: how far the worker's clock is ahead of the chief's.
        server: how far that of the first parameter server is, where points are noted there.

    Attributes:
        steps: the points of each step.
    """

    def __init__(self, worker: Clock, server: Clock | None = None):
        self.steps: list[Times] = []
        self._worker = worker
        self._server = server

    def begin(self) -> None:
        """Notes that the worker is asked to get the weights."""
        self.steps.append({ASKED: time.time_ns()})

    def reached(self, names: Sequence[str], times: tf.Tensor) -> None:
        """Notes points of the present step, or of one that follows it; see `points.Note`.

        This waits for the worker.
        """
        present = self.times(names, times.numpy().tolist())
        if PULLED in present and PULLED in self.steps[-1]:
            self.steps.append({ASKED: max(self.steps[-1].values())})
        self.steps[-1].update(present)

    def times(self, names: Sequence[str], seconds: Sequence[float]) -> Times:
        """The times of points by the chief's clock, from those by the clocks where they were."""
        found: Times = {}
        for name, time_there in zip(names, seconds):
            clock = self._server if name in ON_SERVER else self._worker
            assert clock is not None
            found[name] = _nanoseconds(time_there) - round(1e9 * clock.offset_seconds)
        return found


def clock_there() -> Clock:
    """How far the clock of the present device's machine is ahead of the chief's.

    The chief asks for the time there until the error is at most 1 ms, or 400 times; see `clocks`.
    """
    own: list[Interval] = []
    others: list[Interval] = []
    while True:
        begun = time.time_ns()
        there = _nanoseconds(tf.timestamp().numpy())
        own.append((begun, time.time_ns()))
        others.append((there, there + 1000))  # TensorFlow counts whole microseconds
        clock = clock_of(own, others)
        if len(own) >= _MOST or (len(own) >= _LEAST and clock.error_seconds <= _ERROR):
            return clock


def _nanoseconds(seconds: float) -> int:
    return 1000 * round(1e6 * float(seconds))
