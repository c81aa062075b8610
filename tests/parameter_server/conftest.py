"""The process with the cluster, which starts once, and what it found out."""

import collections
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.equivalence.job import Job
from tests.equivalence.ranks import Ranks
from tfdist.cluster import Cluster
from tfdist.cluster.addresses import reserved_ports

_ROOT = Path(__file__).parents[2]
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
    group = request.node.get_closest_marker("xdist_group")
    message = "each process of pytest-xdist that has one of these tests would start the cluster"
    assert group is not None and group.args == ("parameter_server",), message
    (result,) = _job.result(_scenario(request.node))
    return result


@pytest.fixture
def start(tmp_path):
    """Starts the processes of a job as on several machines: with TF_CONFIG, and nobody looks on."""
    started = []

    def start(workers, ps, *arguments, job="tests.parameter_server.job", **environ):
        names = [("chief", 0), *(("worker", i) for i in range(workers))]
        names += [("ps", i) for i in range(ps)]
        with reserved_ports(len(names)) as ports:
            addresses = collections.defaultdict(tuple)
            for (kind, _), port in zip(names, ports):
                addresses[kind] += (f"127.0.0.1:{port}",)
        processes = {}
        for kind, index in names:
            config = Cluster(addresses, kind, index).to_tf_config()
            path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
            environ |= {"TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": path}
            with (tmp_path / f"{kind}-{index}.log").open("ab") as log:
                processes[kind, index] = subprocess.Popen(
                    [sys.executable, "-m", job, str(tmp_path), *arguments],
                    env=os.environ | environ,
                    stdout=log,
                    stderr=log,
                    cwd=_ROOT,
                )
        started.extend(processes.values())
        return processes, addresses

    yield start
    for process in started:
        process.kill()
        process.wait()


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    """The time that durations are measured with; set by hand."""
    from tfdist.parameter_server.data import durations

    clock = Clock()
    monkeypatch.setattr(durations, "time", clock)
    return clock
