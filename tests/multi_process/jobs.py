"""Which processes are started, and how a test says what it wants of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.equivalence.ranks import Ranks
from tfdist.strategies.horovod import is_installed

_PROGRAM = (sys.executable, "-m", "tests.multi_process.worker")
JOBS = {
    job.column: job
    for job in (
        Ranks("multi_worker-2", "multi_worker", 2, program=_PROGRAM),
        Ranks("horovod-2", "horovod", 2, program=_PROGRAM),
        Ranks("multi_worker-3", "multi_worker", 3, program=_PROGRAM),
        Ranks("horovod-3", "horovod", 3, program=_PROGRAM),
        Ranks("multi_worker-2x2", "multi_worker", 2, devices=2, program=_PROGRAM),
    )
}
PAIRS = ("multi_worker-2", "horovod-2")
MULTI_WORKER = ("multi_worker-2",)
ALL = tuple(JOBS)
HOROVOD = ("horovod-2", "horovod-3")


class Wanted(NamedTuple):
    """What a test wants to know: what the ranks of `job` found out in `scenario`."""

    job: str
    scenario: str


def scenario(function: Callable, jobs: tuple[str, ...] = PAIRS) -> pytest.MarkDecorator:
    """Gives a test as `found` what the ranks of each of `jobs` found out in `function`.

    Args:
        function: one of the folder `scenarios`.
        jobs: names out of `JOBS`.
    """
    return pytest.mark.parametrize(
        "found", [_param(name, function) for name in jobs], indirect=True
    )


def _param(job: str, function: Callable):
    # One process of pytest-xdist has a job.
    marks = [pytest.mark.xdist_group(f"multi_process-{job}")]
    if JOBS[job].launcher == "horovod":
        marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
    return pytest.param(Wanted(job, name_of(function)), marks=marks, id=job)


def name_of(function: Callable) -> str:
    """What a scenario is called: its module and its function."""
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
