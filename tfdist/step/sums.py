"""Which variables are parts of sums: each replica counts for itself; they are added up when read.

TensorFlow says so by a variable's synchronization. In elastic jobs such a variable is a plain one
on each rank, as nobody could add up what a lost rank had.
"""

from __future__ import annotations

import weakref

import tensorflow as tf

_noted: weakref.WeakValueDictionary[int, tf.Variable] = weakref.WeakValueDictionary()


def note(variable: tf.Variable) -> None:
    """Notes a variable that is a part of a sum, whatever its synchronization is."""
    _noted[id(variable)] = variable


def is_sum(variable: tf.Variable) -> bool:
    """Whether a variable is a part of a sum on each replica, such as a metric's state."""
    by_itself = variable.synchronization == tf.VariableSynchronization.ON_READ
    return by_itself or _noted.get(id(variable)) is variable
