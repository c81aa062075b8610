"""Which ranks of `horovodrun` are reducers, and what is refused."""

import json
import os
import subprocess
import sys
import urllib.request

import pytest

from tfdist.cluster import choose_strategy
from tfdist.strategies.multi_worker.joining import cluster_of_process

FOREIGN = ("TF_CONFIG", "HOROVOD_", "OMPI_", "PMI", "SLURM_", "TFDIST_")
TASK = {"type": "worker", "index": 0}
TF_CONFIG = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": TASK})
ASKS = (
    "import os\n"
    "from tfdist.cluster import describe\n"
    "from tfdist.strategies.multi_worker.joining import cluster_of_process\n"
    "print(cluster_of_process().to_tf_config())\n"
    "assert cluster_of_process() == cluster_of_process()\n"
    "print(os.environ['HOROVOD_RANK'], os.environ['HOROVOD_SIZE'], describe().launcher)\n"
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
    printed = [process.communicate(timeout=100)[0].splitlines() for process in started]
    assert [lines[1] for lines in printed[:3]] == [f"{rank} 3 TF_CONFIG" for rank in range(3)]
    found = [json.loads(lines[0]) for lines in printed]
    assert [one["task"] for one in found] == [
        *({"type": "worker", "index": index} for index in range(3)),
        {"type": "reducer", "index": 0},
    ]
    assert all(one["cluster"] == found[0]["cluster"] for one in found)
    assert [len(found[0]["cluster"][job]) for job in ("worker", "reducer")] == [3, 1]


@pytest.mark.parametrize("reducers", ["3", "-1", "two", "²", "9" * 30])
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


@pytest.mark.parametrize("reducers", ["", "0"])
def test_none_may_be_asked_for(alone, reducers):
    alone(**variables(0, 4, reducers))
    assert choose_strategy(os.environ, 1, horovod_installed=True)[0] == "horovod"
    with pytest.raises(ValueError, match="without TF_CONFIG they would train apart"):
        cluster_of_process()


def test_a_host_that_only_itself_knows_by_its_name_is_refused(alone, port):
    alone(**variables(0, 3, "1", port))
    store = f"http://127.0.0.1:{port}/tfdist_reducers"
    for rank, address in ((1, "b:1"), (2, "localhost:2")):
        asked = urllib.request.Request(f"{store}/{rank}", address.encode(), method="PUT")
        urllib.request.urlopen(asked).close()
    with pytest.raises(ValueError, match="as the others know it. Received: localhost:.*, b:1"):
        cluster_of_process()


def test_horovodrun_that_cannot_be_reached_is_named(alone):
    alone(**variables(0, 3, "1"))
    with pytest.raises(ConnectionError, match="GLOO_RENDEZVOUS_ADDR='127.0.0.1', .*_PORT='1'"):
        cluster_of_process()


@pytest.mark.full
def test_operations_of_horovod_would_wait_for_reducers(alone):
    pytest.importorskip("horovod")
    alone()
    asks = (
        "import os, horovod.tensorflow as hvd\n"
        "hvd.init()\n"
        f"os.environ.update({variables(0, 4, '1')!r})\n"
        "from tfdist.strategies.multi_worker.joining import cluster_of_process\n"
        "cluster_of_process()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", asks], capture_output=True, text=True, timeout=100, check=False
    )
    assert "ValueError: Reducers take no part in operations of Horovod" in done.stderr


def test_elastic_jobs_of_horovodrun_are_refused(alone):
    alone(**variables(0, 4, "1"), HOROVOD_ELASTIC="1")
    with pytest.raises(ValueError, match="--min-np"):
        cluster_of_process()


def test_ranks_that_do_not_come_are_named(alone, port):
    alone(**variables(0, 4, "1", port), TFDIST_CONNECT_TIMEOUT="1")
    with pytest.raises(TimeoutError, match="Of 4 ranks, rank 1, rank 2, rank 3 did not"):
        cluster_of_process()
