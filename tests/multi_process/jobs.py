"""Which processes are started, and how a test says what it wants of them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.equivalence.ranks import Ranks
from tfdist.strategies.horovod.backend import is_installed

_PROGRAM = (sys.executable, "-m", "tests.multi_process.worker")
JOBS = {
    job.column: job
    for job in (
        Ranks("multi_worker-2", "multi_worker", 2, program=_PROGRAM),
        Ranks("horovod-2", "horovod", 2, program=_PROGRAM),
        Ranks("multi_worker-3", "multi_worker", 3, program=_PROGRAM),
        Ranks("horovod-3", "horovod", 3, program=_PROGRAM),
        Ranks("multi_worker-4", "multi_worker", 4, program=_PROGRAM),
        Ranks("multi_worker-8", "multi_worker", 8, program=_PROGRAM),
        Ranks("multi_worker-2x2", "multi_worker", 2, devices=2, program=_PROGRAM),
        Ranks("horovod-2x2", "horovod", 4, hosts=2, program=_PROGRAM),
        Ranks("multi_worker-3x2", "multi_worker", 3, devices=2, program=_PROGRAM),
        Ranks("horovod-3x2", "horovod", 6, hosts=3, program=_PROGRAM),
        Ranks("multi_worker-2-reducers", "multi_worker", 2, reducers=2, program=_PROGRAM),
        Ranks("multi_worker-3-reducers", "multi_worker", 3, reducers=2, program=_PROGRAM),
    )
}
PAIRS = ("multi_worker-2", "horovod-2")
MULTI_WORKER = ("multi_worker-2",)
# Jobs of several hosts, at least by what their ranks are told.
ON_HOSTS = ("multi_worker-2x2", "horovod-2x2")
ON_MORE_HOSTS = (*ON_HOSTS, "multi_worker-3x2", "horovod-3x2")
REDUCED = ("multi_worker-2-reducers", "multi_worker-3-reducers")
# For what depends on the number of replicas.
FOUR, EIGHT = "multi_worker-4", "multi_worker-8"
_SPECIAL = (FOUR, EIGHT, "horovod-2x2", "multi_worker-3x2", "horovod-3x2", *REDUCED)
ALL = tuple(job for job in JOBS if job not in _SPECIAL)
HOROVOD = ("horovod-2", "horovod-3")
# Jobs of more than two replicas, whose sums of half precision could be rounded more than once.
MANY_HALVES = ("multi_worker-3", "multi_worker-2x2", "horovod-3")
# What is the same code with either engine, the default suite tests with one. By file, or scenario.
_USUAL = {
    "compression": ("multi_worker-2",),
    "balance": ("multi_worker-2",),
    "batch_logs": ("multi_worker-2",),
    "data": ("horovod-2",),
    "decisions": ("horovod-2",),
    "files": ("multi_worker-2",),
    "hosts": ("multi_worker-2x2",),
    "local_callbacks": ("multi_worker-2",),
    "local_steps": ("horovod-2",),
    "loops.keras_losses": ("multi_worker-2",),
    "loops.means": ("multi_worker-2",),
    "loops.built_in_the_first_step": ("horovod-2",),
    "loops.wrapped_and_built_in_the_first_step": ("horovod-2",),
    "loops.tutorials": ("multi_worker-2",),
    "mismatches": ("multi_worker-2",),
    "mismatches_by_hand": ("multi_worker-2",),
    "sharding": ("horovod-2",),
    "rows": ("horovod-2",),
    "streaming.lossless": ("horovod-2",),
    "strategies.several": ("multi_worker-2",),
    "strategies.loop_with_changing_sizes": ("horovod-2",),
    "strategies.predictions_of_other_dtypes": ("horovod-2",),
    "timed": ("horovod-2",),
}

# What takes long, of which a quicker scenario of the same file tests a part: for the full suite.
_LONG = {
    "hosts.compressed",
    "hosts.trained",
    "local_callbacks.allowed",
    "local_callbacks.refused",
    "local_steps.after",
    "local_steps.by_hands",
    "local_steps.compressed",
    "local_steps.interrupted",
    "local_steps.logs",
    "local_steps.looked_at",
    "local_steps.resumed",
    "sharding.looked_at",
    "sharding.not_a_number",
    "sharding.owned",
    "sharding.resumed",
    "streaming.by_hands",
    "streaming.coded",
    "streaming.delayed",
    "streaming.resumed",
    "timed.by_hands",
}


class Wanted(NamedTuple):
    """What a test wants to know: what the ranks of `job` found out in `scenario`."""

    job: str
    scenario: str


def scenario(function: Callable, jobs: tuple[str, ...] = PAIRS) -> pytest.MarkDecorator:
    """Gives a test as `found` what the ranks of each of `jobs` found out in `function`.

    Jobs of more processes or devices than two, some of a second engine, and what takes long are
    marked `full`.

    Args:
        function: one of the folder `scenarios`.
        jobs: names out of `JOBS`.
    """
    usual = _USUAL.get(name_of(function)) or _USUAL.get(module_of(function), PAIRS)
    if not set(usual) & set(jobs):
        usual = jobs[:1]
    if name_of(function) in _LONG:
        usual = ()
    parameters = [_param(job, function, job in usual) for job in jobs]
    return pytest.mark.parametrize("found", parameters, indirect=True)


def _param(job: str, function: Callable, is_usual: bool):
    # One process of pytest-xdist has a job.
    marks = [pytest.mark.xdist_group(f"multi_process-{job}")]
    if not is_usual:
        marks.append(pytest.mark.full)
    if JOBS[job].launcher == "horovod":
        marks.append(pytest.mark.skipif(not is_installed(), reason="make horovod"))
    return pytest.param(Wanted(job, name_of(function)), marks=marks, id=job)


def name_of(function: Callable) -> str:
    """What a scenario is called: its module and its function."""
    return f"{module_of(function)}.{function.__name__}"


def module_of(function: Callable) -> str:
    """The name of the file of the folder `scenarios` that `function` is in."""
    return function.__module__.rpartition(".")[2]
