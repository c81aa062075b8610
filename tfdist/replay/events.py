"""The contents of a record as data: its header, and the events of training."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Header:
    """What stays the same during the whole run.

    Attributes:
        workers: the number of workers.
        ps: the number of parameter servers.
        options: the strategy's options that influence the weights, as text.
        threads: the value of TF_NUM_INTRAOP_THREADS. Some operations divide their sums by it.
        versions: the versions of the packages.
    """

    workers: int
    ps: int
    options: dict[str, str]
    threads: str | None
    versions: dict[str, str]


class Weights(NamedTuple):
    """What is kept of the values of all variables.

    Attributes:
        checksum: CRC-32 of all bytes.
        sample: some numbers of each variable.
    """

    checksum: int
    sample: list[list[float]]


class Fit(NamedTuple):
    """A `fit` has begun.

    Attributes:
        variables: path, shape and dtype of each variable.
    """

    variables: list[list]


class Run(NamedTuple):
    """The workers have begun an epoch, or go on with an epoch after something else.

    Attributes:
        epoch: the number of the epoch, from 0.
        version: the number of updates so far.
        weights: the values of all variables.
    """

    epoch: int
    version: int
    weights: Weights


class Used(NamedTuple):
    """Gradients were used: of one work item, or of all parts of a global batch.

    Attributes:
        action: "update", "kept" until there are enough for an update, "dropped" as too stale, or
            "skipped" by loss scaling.
        worker: the index of the worker; with Synchronous, of the worker that had the last part.
        read: the version of the weights that the gradient was computed from (the number of updates
            until then).
        version: the version after the use.
        staleness: τ, the number of updates between the reading and the use.
        factor: what the learning rate was multiplied by; None where nothing was updated.
        number: the number of earlier batches in this run; the seeds derive from this number.
        batches: for each batch, or each part of a global batch: shard, position, index of the part
            and checksum.
        anew: which of the work items (one, or one for each part of a global batch) had lost, with a
            worker, what compression had left unsent; None for none.
    """

    action: str
    worker: int
    read: int
    version: int
    staleness: int
    factor: float | None
    number: int
    batches: list[list]
    anew: list[int] | None = None


class Exhausted(NamedTuple):
    """The data or the budget of the run have ended."""


class End(NamedTuple):
    """A `fit` has ended.

    Attributes:
        error: the name of the exception that ended it; None for none.
        weights: the values of all variables; None after an error.
    """

    error: str | None
    weights: Weights | None


Event = Fit | Run | Used | Exhausted | End
