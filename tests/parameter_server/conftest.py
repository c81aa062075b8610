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


def _scenario(item):
    marker = item.get_closest_marker("scenario")
    return marker and marker.args[0]


def pytest_configure(config):
    config.addinivalue_line("markers", "scenario(name): what the process with the cluster does")


@pytest.fixture(scope="session")
def _job(request, tmp_path_factory):
    names = list(dict.fromkeys(filter(None, map(_scenario, request.session.items))))
    job = Job(_JOB, names, tmp_path_factory.mktemp("parameter_server") / str(os.getpid()))
    yield job
    job.stop()


@pytest.fixture
def found(request, _job):
    """What was found out in the scenario of the test."""
    (result,) = _job.result(_scenario(request.node))
    return result
