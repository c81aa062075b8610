"""Where tensors are: in the chief, or on the parameter server of a variable."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.structures import Structure

CHIEF = compat.CHIEF


def servers(count: int) -> list[str]:
    """The devices of so many parameter servers."""
    return [compat.server(task) for task in range(count)]


def on_its_device(variable: keras.Variable, value: Structure) -> Structure:
    """`value`, a tensor or `tf.IndexedSlices`, on the device of `variable`."""
    with tf.device(variable.value.device):
        return tf.nest.map_structure(tf.identity, value, expand_composites=True)
