"""Which ranks of `horovodrun` are reducers, and what is refused."""

import json
import os
import subprocess
import sys

import pytest

from tfdist.cluster import choose_strategy
from tfdist.strategies.multi_worker.joining import cluster_of_process

FOREIGN = ("TF_CONFIG", "HOROVOD_", "OMPI_", "PMI", "SLURM_", "TFDIST_")
TASK = {"type": "worker", "index": 0}
TF_CONFIG = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": TASK})
ASKS = (
    "import os\n"
    "from tfdist.strategies.multi_worker.joining import cluster_of_process\n"
    "print(cluster_of_process().to_tf_config())\n"
    "assert cluster_of_process() == cluster_of_process()\n"
    "assert 'HOROVOD_RANK' not in os.environ\n"
)


def variables(rank, size, reducers, port=1):
    """What `horovodrun --gloo` sets, as far as it matters here."""
    of_rank = {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": str(size)}
    of_store = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1"}
    of_store["HOROVOD_GLOO_RENDEZVOUS_PORT"] = str(port)
    named = {"HOROVOD_HOSTNAME": "localhost", "TFDIST_REDUCERS": reducers}
    return of_rank | of_store | named


@pytest.fixture
def port():
    """That of the store with which `horovodrun` lets its processes meet."""
    server = pytest.importorskip("horovod.runner.http.http_server").RendezvousServer()
    yield server.start()
    server.stop()


@pytest.fixture
def alone(monkeypatch):
    """Sets variables, beside which there are none of other launchers."""

    def set_all(**environ):
        for name in list(os.environ):
            if name.startswith(FOREIGN):
                monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    return set_all


def test_the_last_ranks_are_reducers(port):
    kept = {n: value for n, value in os.environ.items() if not n.startswith(FOREIGN)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ASKS],
            env=kept | variables(rank, 4, "1", port) | {"http_proxy": "http://localhost:1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    found = [json.loads(process.communicate(timeout=100)[0]) for process in started]
    assert [one["task"] for one in found] == [
        *({"type": "worker", "index": index} for index in range(3)),
        {"type": "reducer", "index": 0},
    ]
    assert all(one["cluster"] == found[0]["cluster"] for one in found)
    assert [len(found[0]["cluster"][job]) for job in ("worker", "reducer")] == [3, 1]


@pytest.mark.parametrize("reducers", ["0", "3", "-1", "two", "", "²", "9" * 30])
def test_two_ranks_must_be_left(alone, reducers):
    alone(**variables(0, 4, reducers))
    with pytest.raises(ValueError, match="two ranks must be left.*Received: TFDIST_REDUCERS"):
        cluster_of_process()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
        {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "4"},
        {"TF_CONFIG": TF_CONFIG},
    ],
)
def test_other_launchers_have_ways_of_their_own(alone, environ):
    alone(**environ, TFDIST_REDUCERS="1")
    assert choose_strategy(os.environ, 1, horovod_installed=True)[0] == "multi_worker"
    with pytest.raises(ValueError, match=r"--reducers and.*job `reducer`.*Received: .*='1'"):
        cluster_of_process()


def test_elastic_jobs_of_horovodrun_are_refused(alone):
    alone(**variables(0, 4, "1"), HOROVOD_ELASTIC="1")
    with pytest.raises(ValueError, match="--min-np"):
        cluster_of_process()


def test_ranks_that_do_not_come_are_named(alone, port):
    alone(**variables(0, 4, "1", port), TFDIST_CONNECT_TIMEOUT="1")
    with pytest.raises(TimeoutError, match="Of 4 ranks, rank 1, rank 2, rank 3 did not"):
        cluster_of_process()
