"""The file of what jobs have measured. It grows with each job, and a later run goes on with it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmarks.common import machine

# What tells a job from others, as JSON can have it.
Job = TypeVar("Job", bound=Sequence[Any])


class Kept(Generic[Job]):
    """What has been measured.

    Args:
        path: the path of the JSON file.
        settings: what all jobs have in common.
        packages: the packages whose versions matter, as for `machine.versions`.
        fresh: whether to begin anew, and not to go on with an existing file.

    Attributes:
        content: all that the file has.

    Raises:
        SystemExit: when the file has other settings, or is of other versions or another machine.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], packages: Sequence[str], fresh: bool
    ):
        self._path = path
        same = {
            "settings": dict(settings),
            "versions": machine.versions(*packages),
            "machine": machine.facts(),
        }
        self.content: dict[str, Any] = {**same, "jobs": []}
        if path.exists() and not fresh:
            found = json.loads(path.read_text(encoding="utf-8"))
            if others := {key: found.get(key) for key in same if found.get(key) != same[key]}:
                sys.exit(
                    f"{path} was measured otherwise: choose the same options, or --fresh to "
                    f"measure all of it anew. Received: {others}"
                )
            self.content = found
        path.parent.mkdir(parents=True, exist_ok=True)

    def lacks(self, job: Job) -> bool:
        """Whether nothing is known of a job."""
        return all(known["job"] != list(job) for known in self.content["jobs"])

    def add(self, job: Job, found: Mapping[str, Any]) -> None:
        """Keeps what a job has measured; the file is whole at any time."""
        self.content["jobs"].append({"job": list(job), "found": found})
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content), encoding="utf-8")
        partial.replace(self._path)

    def jobs(self) -> Iterator[tuple[list[Any], Any]]:
        """All jobs, each with what it has measured."""
        for known in self.content["jobs"]:
            yield known["job"], known["found"]

    def fill(
        self,
        jobs: Sequence[Job],
        minutes: float,
        measure: Callable[[Job], Mapping[str, Any]],
        title: Callable[[Job], str],
        progress: Callable[[Job, Mapping[str, Any]], str],
    ) -> None:
        """Runs the jobs that are missing, as long as there is time; says how it goes.

        A job that fails does not end the others.

        Args:
            jobs: all jobs, in their order.
            minutes: after which no job begins.
            measure: what a job finds; a RuntimeError says why it failed.
            title: of a job.
            progress: what to say of what a job has found.
        """
        start = time.monotonic()
        for number, job in enumerate(jobs, start=1):
            passed = (time.monotonic() - start) / 60
            if not self.lacks(job):
                continue
            if passed > minutes:
                break
            head = f"{passed:.1f} min, job {number} of {len(jobs)}: {title(job)}"
            try:
                found = measure(job)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{head}: FAILED\n{error}", file=sys.stderr, flush=True)
                continue
            self.add(job, found)
            print(f"{head}\n{progress(job, found)}", file=sys.stderr, flush=True)
