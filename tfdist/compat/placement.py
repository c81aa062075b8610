"""On which devices a strategy makes the copies of a variable."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf

from tfdist.compat.registry import READ, TENSORFLOW, touch
from tfdist.structures import Structure

_PLACES = touch(
    *("tensorflow.python.distribute.values:DistributedValues", "_devices", READ),
    why="a strategy makes variables on the devices of its replicas, or beside those of another "
    "variable. The state of an optimizer shall be in the memory of the host",
    versions=TENSORFLOW,
    instead="a strategy that may be told the devices of a variable",
)


class _Places:
    """Stands for a variable whose copies are on these devices."""

    def __init__(self, devices: Sequence[str]):
        setattr(self, _PLACES.name, tuple(devices))


@contextlib.contextmanager
def variables_on(devices: Sequence[str]) -> Iterator[None]:
    """In this context a mirrored strategy makes the copies of variables on these devices.

    Args:
        devices: one for each replica of this process.
    """
    places = _Places(devices)

    def create(next_creator: Callable, **arguments: Structure) -> tf.Variable:
        return next_creator(**{**arguments, "colocate_with": places})

    with tf.variable_creator_scope(create):
        yield
