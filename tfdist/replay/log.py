"""The file of a record: one line of JSON for each event, written when the event has happened.

The first line is the header, a JSON object. Each other line is a JSON list: the name of an event,
and then the values of the fields of `Fit`, `Run`, `Used`, `Exhausted` or `End`, in their order.
Each line is handed to the system at once. If the process is killed, only its last line may be cut
off.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any

from tfdist.replay.events import End, Event, Exhausted, Fit, Header, Run, Used, Weights
from tfdist.replay.record_checks import check_end, check_fit, check_header, check_run, check_used

FORMAT = 1
_WHAT_TO_DO = (
    "Give the file that tfdist.ParameterServerStrategy(record=...) has written in the chief."
)
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
        """The number of updates at the end of the run."""
        return self.used[-1].version if self.used else self.run.version


@dataclasses.dataclass
class FitLog:
    """What happened in a `fit`; `end` is None where the record is cut off."""

    fit: Fit
    runs: list[RunLog] = dataclasses.field(default_factory=list)
    end: End | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the `fit` ended without an error."""
        return self.end is not None and self.end.error is None


@dataclasses.dataclass
class Log:
    """A record that was read."""

    header: Header
    fits: list[FitLog]


class Writer:
    """Writes a record.

    Args:
        path: the path of the file. An existing file is kept, with ".before" added to its name.
        header: the first line.

    Raises:
        OSError: when the file cannot be written.
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
        ValueError: in one line, when `path` is no record, or a record of another format.
        OSError: when the file cannot be read.
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
    """Reads a record. A last line that is cut off is left out.

    Raises:
        ValueError: in one line, when `path` is no record, or one of another format, or damaged.
        OSError: when the file cannot be read.
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
