"""What the jobs of the benchmark of all-reduces have measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.all_reduce.report import Cell
from benchmarks.common.kept import Kept


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


class Results(Kept[Job]):
    """As `Kept`, with jobs that are `Job`s."""

    def __init__(self, path: Path, settings: Mapping[str, Any], fresh: bool):
        super().__init__(path, settings, ("TensorFlow", "Horovod"), fresh)

    def cell(self, link: str, ranks: int) -> Cell:
        """What all jobs have measured of a link with so many ranks."""
        cell = Cell(link, ranks)
        for known, found in self.jobs():
            job = Job(*known)
            if (job.link, job.ranks) == (link, ranks):
                cell.add(job.block, found)
        return cell
