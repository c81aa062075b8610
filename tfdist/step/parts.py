"""Where the time of this process' train steps goes, summed up in the graph.

A step passes points: it has its batch, its gradients, their sums, and its updated weights. The time
from each point to the next belongs to a part of the step. A step with several updates passes the
last three again. `tf.timestamp` reads the clock, which costs a few microseconds; TensorFlow runs
these operations in the order of the program, as it should be here. With several replicas in one
process the times are those of the process: it computes until its last replica has computed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist import compat
from tfdist.step import end_of_data, weighting
from tfdist.structures import Structure

_PARTS = ("compute", "exchange", "update", "samples", "steps")


class Sums(NamedTuple):
    """What the steps so far add up to.

    Attributes:
        compute: seconds from the batch to the gradients.
        exchange: seconds from the gradients to their sums, as far as nothing hides them.
        update: seconds from the sums to the updated weights. With `sharding` a part of the exchange
            is in it.
        samples: that the replicas of this process had.
        steps: of this process. An execution of Keras' train function may end with the data, before
            it has made all of its steps.
    """

    compute: float
    exchange: float
    update: float
    samples: float
    steps: float


class StepParts:
    """Sums up the parts of steps; a strategy has it while somebody wants to know.

    Example:

    >>> from tfdist.step.parts import StepParts
    >>> StepParts().read()
    Sums(compute=0.0, exchange=0.0, update=0.0, samples=0.0, steps=0.0)
    """

    _begun: tf.Tensor  # in the step that is traced

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._last = compat.plain_variable(tf.zeros([], tf.float64))
            self._sums = compat.plain_variable(tf.zeros([len(_PARTS)], tf.float64))
        self._steps = 0

    @property
    def is_in_step(self) -> bool:
        """Whether a replica of this process runs a step in `of_step`."""
        return self._steps > 0

    def read(self) -> Sums:
        """The sums over the steps that have ended; outside of a `tf.function`."""
        return Sums(*self._sums.numpy().tolist())

    @contextlib.contextmanager
    def of_step(self, args: Structure, is_first: bool) -> Iterator[None]:
        """In this context a replica runs a train step, whose parts are noted.

        The step waits until its begin is noted: TensorFlow might note it later otherwise, while its
        threads compute.

        Args:
            args: the step's arguments, a batch.
            is_first: whether the replica is the first one of this process.
        """
        size = weighting.batch_size(args)
        with tf.control_dependencies(_tensors(args)), tf.device("CPU:0"):
            if is_first:
                self._begun = tf.timestamp()
                self._last.assign(self._begun)
            samples = tf.cast(0 if size is None else size, tf.float64)
            self._add(samples=samples, steps=float(is_first))
        self._steps += 1
        try:
            with end_of_data.nothing_without(self._begun):
                yield
        finally:
            self._steps -= 1

    def computed(self, gradients: Structure) -> None:
        """Notes that there are the gradients of an update; in replica context."""
        self._reached("compute", _tensors(gradients))

    def updating(self, totals: Structure, update: Callable[[], None]) -> None:
        """Calls `update`, which changes variables by `totals`; in replica context."""
        self._reached("exchange", _tensors(totals))
        before = compat.operations_so_far()
        update()
        self._reached("update", _last_of(before))

    def _reached(self, part: str, after: Sequence[tf.Tensor | tf.Operation]) -> None:
        """Adds the time since the point before to a `part`, once all of `after` are there."""
        with tf.control_dependencies(list(after)), tf.device("CPU:0"):
            now = tf.timestamp()
        with tf.device("CPU:0"):
            self._add(**{part: now - self._last.read_value()})
            self._last.assign(now)

    def _add(self, **values: tf.Tensor | float) -> None:
        self._sums.assign_add(tf.stack([values.get(name, 0.0) for name in _PARTS]))


def _noting() -> StepParts | None:
    """What notes the parts of the step that runs here; None outside of such a step."""
    parts: StepParts | None = getattr(tf.distribute.get_strategy(), "parts", None)
    return parts if parts is not None and parts.is_in_step else None


def computed(gradients: Structure) -> None:
    """Says that there are the gradients of an update; in replica context."""
    parts = _noting()
    if parts is not None:
        parts.computed(gradients)


def updating(totals: Structure, update: Callable[[], None]) -> None:
    """Calls `update`, whose time is noted if somebody wants to know; in replica context."""
    parts = _noting()
    if parts is not None:
        update = functools.partial(parts.updating, totals, update)
    update()


def _last_of(before: int) -> list[tf.Operation]:
    """The operations from `before` on that set variables: nothing comes after them."""
    if tf.executing_eagerly():
        return []
    made = tf.compat.v1.get_default_graph().get_operations()[before:]
    return [operation for operation in made if not operation.outputs]


def _tensors(structure: Structure) -> list[tf.Tensor]:
    flat = tf.nest.flatten(structure, expand_composites=True)
    return [tensor for tensor in flat if isinstance(tensor, tf.Tensor)]
