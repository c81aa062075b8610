"""What a worker does between two readings of the weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfdist.parameter_server.data.batch import Batch
from tfdist.parameter_server.gradients import Outcome, Unsent
from tfdist.parameter_server.noted import Noted, Times


class Made(NamedTuple):
    """An update that a worker has made itself.

    Attributes:
        version: the number of updates, with this one.
        staleness: the staleness of its gradients.
        results: the results of the metrics after it.
        times: when the points of `points.OF_UPDATE` were reached; None where nobody asks.
    """

    version: int
    staleness: int
    results: dict[str, float]
    times: Times | None = None


class Snapshot(NamedTuple):
    """The weights between two updates.

    Attributes:
        version: the number of updates so far.
        values: the values of the step's variables and of their parts, by the keys of `packing`.
    """

    version: int
    values: dict[str, tf.Tensor]


@dataclasses.dataclass
class WorkItem:
    """A worker's work for an update, or for a part of one.

    Attributes:
        worker: the index of the worker.
        batches: what the model's step runs on, one after the other.
        number: the number of batches that were begun earlier in this run.
        version: the number of updates before the values were read; -1 until they are read.
        values: the values that were read.
        outcome: what the worker sent; None until then.
        unsent: what the compressors keep if the gradients are used; None without compression.
        anew: whether the compressors began anew, because a lost worker took the unsent rest along.
        held_back: whether the finished work item had to wait until others were used.
        released: whether the worker may go on.
        call: the number of the call in which the worker makes updates itself; None outside of it.
        made: the updates that the worker has made itself.
        closed: whether the run has ended, so the worker may make no more updates itself.
        abandoned: whether another worker was earlier with the same part of a global batch, or the
            update was made without the part.
        completes: in a replay, whether the record has no more parts of the global batch.
        noted: when the worker has reached points of its steps; None where nobody asks.
    """

    worker: int
    batches: list[Batch]
    number: int
    version: int = -1
    values: dict[str, tf.Tensor] | None = None
    outcome: Outcome | None = None
    unsent: Unsent | None = None
    anew: bool = False
    held_back: bool = False
    released: bool = False
    call: int | None = None
    made: list[Made] = dataclasses.field(default_factory=list)
    closed: bool = False
    abandoned: bool = False
    completes: bool = False
    noted: Noted | None = None


Compute = Callable[[WorkItem, Callable[[WorkItem], None]], None]
"""Does a work item, in its worker's thread; the second argument gives it the latest weights."""
