"""Whether each replica's own gradients by weights in parts are finite.

The backward pass sums these gradients, so nobody who gets the sums can tell. It notes what it finds
before it sums them, of the weights that are watched.
"""

from __future__ import annotations

from collections.abc import Iterable

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step import replica
from tfdist.structures import Gradient


def watch(variables: Iterable[keras.Variable], watched: bool) -> None:
    """Makes steps that are traced from now on note gradients by `variables`, or not any more.

    Args:
        variables: any; only weights in parts need it.
        watched: whether steps note anything.
    """
    for variable in filter(compat.is_sharded, variables):
        variable.is_watched = watched


def note(variable: compat.ShardedVariable, gradient: Gradient) -> None:
    """Notes whether this replica's gradient by a weight in parts is finite; in replica context."""
    step = replica.current()
    if variable.is_watched and step is not None:
        step.notes.finite.setdefault(id(variable), []).append(_is_finite(gradient))


def is_finite(variable: keras.Variable, gradient: Gradient | None) -> tf.Tensor:
    """Whether this replica's own gradient by a variable is finite: a bool scalar.

    Args:
        variable: the variable.
        gradient: what the optimizer is given for it: of a weight in parts the part of the sum.
    """
    if gradient is None:
        return tf.constant(True)
    step = replica.current()
    noted = [] if step is None else step.notes.finite.get(id(variable), [])
    return tf.reduce_all(noted) if noted else _is_finite(gradient)


def _is_finite(gradient: Gradient) -> tf.Tensor:
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.reduce_all(tf.math.is_finite(values))
