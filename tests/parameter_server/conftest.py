"""The process with the cluster, which starts once, and what it found out."""

import os
import sys

import pytest

from tests.equivalence.job import Job
from tests.equivalence.ranks import Ranks

_JOB = Ranks(
    "parameter_server",
    "multi_worker",
    1,
    program=(sys.executable, "-m", "tests.parameter_server.worker"),
)


def pytest_collection_modifyitems(items):
    for item in items:
        if "found" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("parameter_server"))


def _scenario(item):
    return item.get_closest_marker("scenario").args[0]


def pytest_configure(config):
    config.addinivalue_line("markers", "scenario(name): what the process with the cluster does")


@pytest.fixture(scope="session")
def _job(request, tmp_path_factory):
    asking = [item for item in request.session.items if "found" in item.fixturenames]
    names = list(dict.fromkeys(_scenario(item) for item in asking))
    job = Job(_JOB, names, tmp_path_factory.mktemp("parameter_server") / str(os.getpid()))
    yield job
    job.stop()


@pytest.fixture
def found(request, _job):
    """What was found out in the scenario of the test."""
    (result,) = _job.result(_scenario(request.node))
    return result
