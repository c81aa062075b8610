"""When the replicas reach points of their steps, by the clock of their process.

`tf.timestamp` would not do: TensorFlow runs operations that have a state in the order of the
program, so the time of one bucket would wait for the bucket before, and that of one replica for
another one.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.engines.replica_context import static_id
from tfdist.step.end_of_data import nothing_without
from tfdist.structures import Structure

_Result = TypeVar("_Result")

BEGIN = "begin"
"""The point where a replica has its batch."""

COMPUTED = "computed"
"""The point where a replica has its gradients."""


class Point(NamedTuple):
    """A replica has reached a point of its step.

    Attributes:
        replica: its number among all replicas.
        step: the number of its step, from 0.
        name: of the point: BEGIN, COMPUTED, or a part of the step with "begins" or "ends".
        nanoseconds: as `time.time_ns`.
    """

    replica: int
    step: int
    name: str
    nanoseconds: int


class Spans:
    """Notes points while steps in a range run; a strategy has it while somebody wants to know.

    Args:
        first: the first step to note.
        end: the step before which to stop.

    Attributes:
        points: what was noted, in any order.
    """

    def __init__(self, first: int, end: int):
        self.points: list[Point] = []
        self._first, self._end = first, end
        self._begun: collections.Counter[int] = collections.Counter()
        self._lock = threading.Lock()
        with tf.device("CPU:0"):  # so that TensorFlow neither computes times once nor drops them
            self._zero = compat.plain_variable(tf.zeros([]))
            self._sink = compat.plain_variable(tf.zeros([]))

    @property
    def steps(self) -> int:
        """How many steps all replicas of this process have begun."""
        with self._lock:
            return min(self._begun.values(), default=0)

    def start(self, when_computed: list, computed: list, args: Structure) -> tf.Tensor:
        """Notes the begin of a step, and when its gradients are there; in replica context.

        Args:
            when_computed: gets a function that is called as soon as there are gradients.
            computed: the gradients, then.
            args: the step's arguments, its batch.

        Returns:
            A tensor that is there when the begin is noted. The step must wait for it: TensorFlow
            might note the begin later otherwise, while its threads compute.
        """
        when_computed.append(lambda: self.reached(COMPUTED, computed))
        return self.reached(BEGIN, _tensors(args))

    def reached(self, name: str, after: Sequence[tf.Tensor | tf.Operation]) -> tf.Tensor:
        """Notes the time when all of `after` are there; in replica context.

        Returns:
            A tensor that is there when this is noted.
        """
        note = functools.partial(self._note, name, static_id())
        with tf.control_dependencies(list(after)), tf.device("CPU:0"):
            zero = self._zero.read_value()
            done = tf.numpy_function(note, [zero], tf.float32, stateful=False)
            done = tf.ensure_shape(done, [])
            self._sink.assign(done)
            return done

    def _note(self, name: str, replica: int, zero: np.ndarray) -> np.ndarray:
        now = time.time_ns()
        with self._lock:
            self._begun[replica] += name == BEGIN
            step = self._begun[replica] - 1
            if self._first <= step < self._end:
                self.points.append(Point(replica, step, name, now))
        return zero


def mark(name: str, after: Structure) -> contextlib.AbstractContextManager:
    """Notes the time when all of `after` are there, if somebody wants to know.

    Args:
        name: of the point.
        after: tensors.

    Returns:
        A context in which operations wait until the time is noted.
    """
    spans = _spans()
    if spans is None:
        return contextlib.nullcontext()
    return nothing_without(spans.reached(name, _tensors(after)))


def timed(name: str, given: Structure, run: Callable[[], _Result]) -> _Result:
    """What `run` returns: tensors, or None. Its begin and end are noted if somebody wants to know.

    Args:
        name: what `run` does.
        given: what it waits for.
        run: makes operations, in replica context.
    """
    spans = _spans()
    if spans is None:
        return run()
    with mark(f"{name} begins", given):
        before = compat.operations_so_far()
        result = run()
    if result is None:
        made = [] if tf.executing_eagerly() else _operations()[before:]
        spans.reached(f"{name} ends", made)
        return result
    with mark(f"{name} ends", result):
        return tf.nest.map_structure(tf.identity, result, expand_composites=True)


def _spans() -> Spans | None:
    return getattr(tf.distribute.get_strategy(), "spans", None)


def _operations() -> list[tf.Operation]:
    return tf.compat.v1.get_default_graph().get_operations()


def _tensors(structure: Structure) -> list[tf.Tensor]:
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [tensor for tensor in flat if isinstance(tensor, tf.Tensor)]
