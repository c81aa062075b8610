"""What is not there in batches, such as the targets of an output without a loss.

Users write None, and Keras may turn that into a `tf.experimental.Optional`. TensorFlow can make an
empty batch of neither, as it must where data end, and it cannot divide an optional. So in the data
that a strategy distributes for Keras, an empty tuple stands there: no tensor is in it.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import tensorflow as tf

from tfdist.compat.data import keras_distributes
from tfdist.compat.tuning import without_tuning
from tfdist.data import shards
from tfdist.structures import Structure

# Both of batches and of their type specs.
_KINDS = (
    type(None),
    type(tf.type_spec_from_value(None)),
    tf.experimental.Optional,
    tf.OptionalSpec,
)


class Absent(NamedTuple):
    """Stands in a batch where there is nothing."""


def marked(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset` with `Absent()` where its batches have nothing.

    It stays as it is where nothing is absent, and in loops of the user's own.
    """
    leaves = tf.nest.flatten(dataset.element_spec)
    if not keras_distributes() or not any(isinstance(leaf, _KINDS) for leaf in leaves):
        return dataset

    def mark(batch: Structure) -> Structure:
        return tf.nest.map_structure(
            lambda leaf: Absent() if isinstance(leaf, _KINDS) else leaf, batch
        )

    return shards.mapped(without_tuning(dataset), mark)


def as_none(data: Structure) -> Structure:
    """Batches, or their type specs, with None in place of `Absent()`."""
    return keras.tree.traverse(
        lambda part: keras.tree.MAP_TO_NONE if isinstance(part, Absent) else None, data
    )
