"""What a worker does between two readings of the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfdist.parameter_server.data.batch import Batch
from tfdist.parameter_server.gradients import Outcome, Unsent


class Snapshot(NamedTuple):
    """The weights between two updates.

    Attributes:
        version: the number of updates before.
        values: those of the step's variables and their parts.
    """

    version: int
    values: list[tf.Tensor]


@dataclasses.dataclass
class WorkItem:
    """A worker's work for an update, or for a part of one.

    Attributes:
        worker: the index of the worker.
        batches: what the model's step runs on, one after the other.
        number: the number of batches that were begun before in this run.
        version: the number of updates before the values were read; -1 as long as they are not.
        values: what was read.
        outcome: what the worker sent; None until then.
        unsent: what its compressors keep when the gradients are used; None without compression.
        anew: whether they began anew, as what was unsent is lost with a worker.
        held_back: whether others had to be used first, when the gradients were there.
        released: whether the worker may go on.
    """

    worker: int
    batches: list[Batch]
    number: int
    version: int = -1
    values: list[tf.Tensor] | None = None
    outcome: Outcome | None = None
    unsent: Unsent | None = None
    anew: bool = False
    held_back: bool = False
    released: bool = False


Compute = Callable[[WorkItem, Callable[[WorkItem], None]], None]
"""Does a work item, in its worker's thread; the second argument gives it the latest weights."""
