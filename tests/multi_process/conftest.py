"""The processes, which start once for all tests of a job, and what they found out."""

import os

import pytest

from tests.equivalence.job import Job
from tests.equivalence.ranks import Limits
from tests.multi_process.jobs import JOBS, Wanted

# Some scenarios are fifteen trainings, on cores that other tests use too.
_LIMITS = Limits(feature=600.0)

pytest.register_assert_rewrite("tests.multi_process.checks")


class Found:
    """What the ranks of all jobs found out; a job starts when the first test asks for it.

    Args:
        folder: for results, logs and the scenarios' files.
        wanted: the names of the scenarios that the session needs, by job.
    """

    def __init__(self, folder, wanted):
        self._folder = folder
        self._wanted = wanted
        self._jobs = {}

    def of(self, job, scenario):
        """What each rank of `job` found out in `scenario`."""
        if job not in self._jobs:
            folder = self._folder / f"{job}-{os.getpid()}"
            self._jobs[job] = Job(JOBS[job], self._wanted[job], folder, _LIMITS)
        return self._jobs[job].result(scenario)

    def stop(self):
        for job in self._jobs.values():
            job.stop()


@pytest.fixture(scope="session")
def _all_found(request, tmp_path_factory):
    wanted = {job: {} for job in JOBS}
    for item in request.session.items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        for parameter in parameters.values():
            if isinstance(parameter, Wanted):
                wanted[parameter.job][parameter.scenario] = None
    names = {job: list(scenarios) for job, scenarios in wanted.items()}
    found = Found(tmp_path_factory.mktemp("multi_process"), names)
    yield found
    found.stop()


@pytest.fixture
def found(request, _all_found):
    """What each rank found out in the scenario of the test; see `jobs.scenario`."""
    ranks = _all_found.of(*request.param)
    # Tests go over the ranks, and would find nothing wrong with none.
    assert len(ranks) == JOBS[request.param.job].processes
    return ranks
