"""When a worker reaches points of its step, by the clock of its machine.

No Python of ours runs on a worker. So the function that the worker runs asks for the time itself.
TensorFlow runs operations that have a state in the order of the program, and asking for the time is
such an operation. Here that is no harm: the points of a step follow each other anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.parameter_server.own_updates.lock import operations
from tfdist.structures import Structure

ASKED, PULLED, READY, COMPUTED = "asked", "pulled", "ready", "computed"
ENCODED, LOCKED, UPDATED, PUSHED = "encoded", "locked", "updated", "pushed"

OF_STEP = (PULLED, READY, COMPUTED, PUSHED)
"""What a step on a worker notes: the weights are there, also the batch, the gradients, and these on
the parameter servers. The last point is left out where the gradients stay on the worker."""

OF_SENDING = (ENCODED, PUSHED)
"""What is noted where a worker compresses gradients first."""

OF_UPDATE = (ASKED, PULLED, READY, COMPUTED, LOCKED, UPDATED, PUSHED)
"""What is noted where a worker makes the update itself: also when it begins to ask for the weights,
and on the first parameter server when it has the lock and when the update is made."""

ON_SERVER = (LOCKED, UPDATED)
"""The points that are noted by the clock of the first parameter server."""

Note = Callable[[Sequence[str], tf.Tensor], None]
"""Called with the names of points, and a vector of their times in seconds. It may be shorter than
the list of names, where the last points were not reached."""


class Points:
    """The points of a step in the function that is being traced."""

    def __init__(self) -> None:
        self._times: dict[str, tf.Tensor] = {}

    def reached(self, name: str, after: Structure = ()) -> tf.Tensor:
        """Notes the time when all of `after` is there, on the present device.

        Returns:
            The time, for what must wait until it is noted.
        """
        with tf.control_dependencies(operations(after)):
            self._times[name] = tf.timestamp()
        return self._times[name]

    def at_hand(
        self, values: Sequence[tf.Tensor | None], batch: Structure
    ) -> tuple[list[tf.Tensor | None], Structure]:
        """Notes when the weights have come to the worker, and when the batch is there too.

        Returns:
            Both, once that is noted. Computing waits for them alone: TensorFlow fuses no operations
            that wait for others, and the results would differ in the last bit.
        """
        # A value on a parameter server comes with the first operation on the worker that takes it.
        here = _same(values)
        pulled = self.reached(PULLED, here)
        tensors = [leaf for leaf in operations(batch) if tf.is_tensor(leaf)]
        with tf.control_dependencies([self.reached(READY, [pulled, *tensors])]):
            return _same(here), _same(batch)

    def vector(self, names: Sequence[str]) -> tf.Tensor:
        """The times of those points that were reached, as for `Note`."""
        return tf.stack([self._times[name] for name in names if name in self._times])


def _same(structure: Structure) -> Structure:
    """The same tensors, as results of operations on the present device."""
    return tf.nest.map_structure(
        lambda leaf: tf.identity(leaf) if tf.is_tensor(leaf) else leaf,
        structure,
        expand_composites=True,
    )


def reached(points: Points | None, name: str, after: Structure = ()) -> None:
    """As the method of `points`, if somebody wants to know."""
    if points is not None:
        points.reached(name, after)
