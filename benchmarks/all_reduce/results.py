"""The file of what jobs have measured. It grows with each job, and a later run goes on with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.all_reduce.report import Cell
from benchmarks.common import machine


class Job(NamedTuple):
    """Ranks that measure one after the other what they can of a link with one backend.

    Attributes:
        link: a key of `plan.LINKS`.
        ranks: how many.
        block: the number of the block in which the job runs.
        backend: of the strategy.
    """

    link: str
    ranks: int
    block: int
    backend: str


class Results:
    """What has been measured.

    Args:
        path: the path of the JSON file.
        settings: what all jobs have in common.
        fresh: whether to begin anew, and not to go on with an existing file.

    Raises:
        SystemExit: when the file has other settings, or is of other versions or another machine.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], fresh: bool):
        self._path = path
        same = {
            "settings": dict(settings),
            "versions": machine.versions("TensorFlow", "Horovod"),
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
        return job not in [Job(*known["job"]) for known in self.content["jobs"]]

    def add(self, job: Job, found: Mapping[str, Any]) -> None:
        """Keeps what a job has measured; the file is whole at any time."""
        self.content["jobs"].append({"job": list(job), "found": found})
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content), encoding="utf-8")
        partial.replace(self._path)

    def cell(self, link: str, ranks: int) -> Cell:
        """What all jobs have measured of a link with so many ranks."""
        cell = Cell(link, ranks)
        for known in self.content["jobs"]:
            job = Job(*known["job"])
            if (job.link, job.ranks) == (link, ranks):
                cell.add(job.block, known["found"])
        return cell
