"""What a record tells of, as data: its header, and the events of training."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple


@dataclasses.dataclass(frozen=True)
class Header:
    """What is the same in the whole run.

    Attributes:
        workers: the number of workers.
        ps: the number of parameter servers.
        options: of the strategy, those that decide about the weights, as text.
        threads: what TF_NUM_INTRAOP_THREADS was, by which some operations divide their sums.
        versions: of the packages.
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
        variables: path, shape and dtype of each.
    """

    variables: list[list]


class Run(NamedTuple):
    """The workers have begun with an epoch, or go on with it after something else.

    Attributes:
        epoch: which one, from 0.
        version: the number of updates so far.
        weights: the values of all variables.
    """

    epoch: int
    version: int
    weights: Weights


class Used(NamedTuple):
    """The gradients of a work item were used, or of those of all parts of a global batch.

    Attributes:
        action: "update", "kept" until there are enough for an update, "dropped" as too stale, or
            "skipped" by loss scaling.
        worker: the index of the worker; with Synchronous, of the one that had the last part.
        read: the version that the gradient was computed from: the number of updates before.
        version: the version after.
        staleness: its τ, the number of updates between.
        factor: what the learning rate was multiplied by; None where nothing was updated.
        number: what the seeds derive from: the number of batches before in this run.
        batches: for each batch, or each part of a global one: shard, position, index of the part
            and checksum.
        anew: which work items, by part of a global batch, had lost what compression had left
            unsent, with a worker; None for none.
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
