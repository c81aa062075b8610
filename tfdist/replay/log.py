"""The file of a record: one line of JSON for each event, written when it has happened.

The first line is the header, a JSON object. Each other one is a JSON list: the name of an event and
what is known of it, in the order of the fields of `Fit`, `Run`, `Used`, `Exhausted` and `End`.
Lines reach the system one by one, so those of a process that is killed are there up to the last,
which may be cut off.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from tfdist.replay.record_checks import check_end, check_fit, check_header, check_run, check_used

FORMAT = 1
_WHAT_TO_DO = (
    "Give the file that tfdist.ParameterServerStrategy(record=...) has written in the chief."
)


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
_ACTIONS = ("update", "kept", "dropped", "skipped")
_KINDS = {"fit": Fit, "run": Run, "exhausted": Exhausted, "end": End}


@dataclasses.dataclass
class RunLog:
    """What happened in a run."""

    run: Run
    used: list[Used] = dataclasses.field(default_factory=list)
    exhausted: bool = False

    @property
    def version(self) -> int:
        """The number of updates after all of that."""
        return self.used[-1].version if self.used else self.run.version


@dataclasses.dataclass
class FitLog:
    """What happened in a `fit`; `end` is None where the record is cut off."""

    fit: Fit
    runs: list[RunLog] = dataclasses.field(default_factory=list)
    end: End | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it ended without an error."""
        return self.end is not None and self.end.error is None


@dataclasses.dataclass
class Log:
    """A record that was read."""

    header: Header
    fits: list[FitLog]


class Writer:
    """Writes a record.

    Args:
        path: of the file; one that is there already is kept with ".before" behind its name.
        header: its first line.

    Raises:
        OSError: when it cannot be written.
    """

    def __init__(self, path: str, header: Header):
        if os.path.exists(path):
            os.replace(path, path + ".before")
        self._file = open(path, "xb", buffering=0)
        self._write({"tfdist record": FORMAT, **dataclasses.asdict(header)})

    def write(self, event: Event) -> None:
        """Writes a line."""
        if isinstance(event, Used):
            self._write(event if event.anew else event[:-1])
        else:
            self._write((type(event).__name__.lower(), *event))

    def _write(self, value: dict[str, Any] | tuple) -> None:
        self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")


def read_header(path: str) -> Header:
    """The header of a record.

    Raises:
        ValueError: in one line, when `path` is no record, or one of another format.
        OSError: when it cannot be read.
    """
    with open(path, "rb") as file:
        line = file.readline()
    try:
        fields = json.loads(line)
        version = fields.pop("tfdist record")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"This is no record of tfdist. {_WHAT_TO_DO} Received: {path}") from None
    if type(version) is not int or version != FORMAT:
        raise ValueError(
            f"This tfdist reads records of format {FORMAT}: replay with the tfdist that wrote it. "
            f"Received: {path} of format {version}"
        )
    try:
        header = Header(**fields)
        check_header(header)
    except (ValueError, TypeError):
        raise _damaged(path, 1) from None
    return header


def read(path: str) -> Log:
    """Reads a record; a last line that is cut off is left out.

    Raises:
        ValueError: in one line, when `path` is no record, one of another format, or damaged.
        OSError: when it cannot be read.
    """
    log = Log(read_header(path), [])
    for number, event in _events(path):
        try:
            _add(log, event)
        except (ValueError, TypeError, IndexError):
            raise _damaged(path, number) from None
    return log


def _events(path: str) -> Iterator[tuple[int, Event]]:
    with open(path, "rb") as file:
        next(file)
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                return
            try:
                yield number, _event(json.loads(line))
            except (ValueError, TypeError, KeyError, IndexError, RecursionError):
                raise _damaged(path, number) from None


def _event(values: list) -> Event:
    name = values[0]
    if name in _ACTIONS:
        return Used(*values)
    event = _KINDS[name](*values[1:])
    if isinstance(event, (Run, End)) and event.weights is not None:
        return event._replace(weights=Weights(*event.weights))
    return event


def _add(log: Log, event: Event) -> None:
    if isinstance(event, Fit):
        check_fit(event)
        log.fits.append(FitLog(event))
        return
    fit = log.fits[-1]
    if isinstance(event, End):
        check_end(event, fit.fit)
        fit.end = event
    elif isinstance(event, Run):
        check_run(event, fit.fit)
        fit.runs.append(RunLog(event))
    elif isinstance(event, Used):
        run = fit.runs[-1]
        check_used(event, log.header, run.run, run.version)
        run.used.append(event)
    else:
        fit.runs[-1].exhausted = True


def _damaged(path: str, number: int) -> ValueError:
    return ValueError(f"The record is damaged. {_WHAT_TO_DO} Received: {path}, line {number}")
