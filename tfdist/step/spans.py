"""When the replicas reach points of their steps, by the clock of their process.

`tf.timestamp` would not do: TensorFlow runs operations that have a state in the order of the
program, so the time of one bucket would wait for the bucket before, and that of one replica for
another one.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
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

EXCHANGE_OF_ROUND = "exchange of the round"
"""What follows the last step of a round of local steps."""

EXCHANGE_OF_FRAGMENT = "exchange of fragment"
"""The same of a fragment, whose number follows."""


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
        follows: whether others may have made a step that is called here, as where a rank joins.

    Attributes:
        points: what was noted, in any order.
        calls: when the steps were called, in nanoseconds.
        changes: how often the group of an elastic job has changed while steps were noted.
    """

    def __init__(self, first: int, end: int, follows: bool = False):
        self._follows = follows
        self.points: list[Point] = []
        self.calls: list[int] = []
        self.changes = 0
        self._first, self._end = first, end
        # A step that is called begins when a replica has its batch; without data it never does.
        self._called = self._step = -1
        self._is_running = self._ignores = False
        self._begun_after: dict[Hashable, int] = {}  # the steps after which exchanges have begun
        self._beside: Hashable = None  # the exchange that is traced
        self._lock = threading.Lock()
        with tf.device("CPU:0"):  # so that TensorFlow neither computes times once nor drops them
            self._zero = compat.plain_variable(tf.zeros([]))
            self._sink = compat.plain_variable(tf.zeros([]))

    def begin_step(self, step: int) -> None:
        """Notes that a step is called; it begins when a replica has its batch.

        Args:
            step: its number, from 0.
        """
        with self._lock:
            self._called, self._is_running, self._ignores = step, True, False
            if self._follows:
                self._step = step
            self._note_call()

    def end_step(self) -> None:
        """Called when the step has returned."""
        self._is_running = False

    def change_group(self, repeats: bool) -> None:
        """Called where the group of an elastic job has changed.

        Args:
            repeats: whether the step that runs now is begun again, or was completed by others.
                What was noted of it is forgotten then.
        """
        with self._lock:
            self.changes += self._is_noted(self._called)
            if repeats and self._is_running:
                self.points = [point for point in self.points if point.step != self._called]
                self._note_call()

    def begin_beside(self, exchange: Hashable) -> None:
        """Called between two steps, where an exchange begins that runs beside those that follow."""
        self._begun_after[exchange] = self._step

    @contextlib.contextmanager
    def beside(self, exchange: Hashable) -> Iterator[None]:
        """What is traced in this context belongs to the step after which the exchange begins."""
        self._beside = exchange
        try:
            yield
        finally:
            self._beside = None

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
        note = functools.partial(self._note, name, static_id(), self._beside)
        with tf.control_dependencies(list(after)), tf.device("CPU:0"):
            zero = self._zero.read_value()
            done = tf.numpy_function(note, [zero], tf.float32, stateful=False)
            done = tf.ensure_shape(done, [])
            self._sink.assign(done)
            return done

    def _note(self, name: str, replica: int, beside: Hashable, zero: np.ndarray) -> np.ndarray:
        now = time.time_ns()
        with self._lock:
            if name == BEGIN:
                self._ignores = not self._is_running  # a step that is made again after a loss
                self._step = self._called
            step = self._step if beside is None else self._begun_after[beside]
            if self._is_noted(step) and not self._ignores:
                self.points.append(Point(replica, step, name, now))
        return zero

    def _note_call(self) -> None:
        if self._is_noted(self._called):
            self.calls.append(time.time_ns())

    def _is_noted(self, step: int) -> bool:
        return self._first <= step < self._end


def spans_of(strategy: tf.distribute.Strategy) -> Spans | None:
    """Where the points of a strategy's steps are noted; None if nobody wants to know."""
    return getattr(strategy, "spans", None)


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


@contextlib.contextmanager
def ending(strategy: tf.distribute.Strategy, name: str) -> Iterator[None]:
    """Notes for each replica when all is done that is made in this context.

    In cross-replica context.

    Args:
        strategy: the strategy.
        name: what is done.
    """
    before = compat.operations_so_far()
    yield
    spans = spans_of(strategy)
    if spans is not None:
        made = [] if tf.executing_eagerly() else _operations()[before:]
        end = functools.partial(spans.reached, f"{name} ends", made)
        strategy.extended.call_for_each_replica(end)


def beside(
    strategy: tf.distribute.Strategy, exchange: Hashable
) -> contextlib.AbstractContextManager:
    """As `Spans.beside`, if somebody wants to know."""
    spans = spans_of(strategy)
    return contextlib.nullcontext() if spans is None else spans.beside(exchange)


def _spans() -> Spans | None:
    return spans_of(tf.distribute.get_strategy())


def _operations() -> list[tf.Operation]:
    return tf.compat.v1.get_default_graph().get_operations()


def _tensors(structure: Structure) -> list[tf.Tensor]:
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [tensor for tensor in flat if isinstance(tensor, tf.Tensor)]
