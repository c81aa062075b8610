"""What the chief keeps of a snapshot: where the values of which variables are."""

from __future__ import annotations

import weakref
from typing import NamedTuple

import tensorflow as tf

from tfdist.parameter_server.snapshots.files import Place


class Saved(NamedTuple):
    """A snapshot that is whole.

    Attributes:
        version: the number of updates before it.
        epoch: the number of the epoch in which it was taken.
        made: how many variables had been made.
        folder: its folder.
        variables: the variables by device.
        places: where their values are.
    """

    version: int
    epoch: int
    made: int
    folder: str
    variables: dict[str, list[weakref.ref[tf.Variable]]]
    places: dict[str, list[Place]]
