"""A worker or ps serves as long as the chief lives, also where no launcher watches over it."""

import os
import select
import signal
from pathlib import Path

import pytest

from tests.cluster import workers
from tfdist.cluster import Cluster, serve
from tfdist.cluster.addresses import listen, reserved_ports, split_address


@pytest.fixture
def jobs():
    with reserved_ports(3) as ports:
        yield {job: (f"127.0.0.1:{port}",) for job, port in zip(("chief", "worker", "ps"), ports)}


def threads(process, name):
    """How many threads of a process have this name."""
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return sum((task / "comm").read_text().strip() == name for task in tasks)


@pytest.mark.full
def test_servers_of_a_chief_that_is_killed_end_by_themselves(jobs):
    """As on several machines: all that the processes have is TF_CONFIG."""
    hostile = {"TF_NUM_INTEROP_THREADS": "1", "http_proxy": "http://127.0.0.1:1"}
    started = {
        job: workers.start(
            "coordinate" if job == "chief" else "serve",
            TF_CONFIG=Cluster(jobs, job, 0).to_tf_config(),
            **({} if job == "chief" else hostile),
        )
        for job in jobs
    }
    try:
        assert select.select([started["chief"].stdout], [], [], 60)[0]
        # Those that compute. With one, as is asked for here, a server may wait for itself.
        computing = threads(started["ps"], "tf_Compute")
    finally:
        started["chief"].kill()
    (_, shown, _), *servers = workers.finish(started.values())
    assert shown == "total 10.0"
    assert computing >= 2
    for job, (code, out, err) in zip(("worker", "ps"), servers):
        assert (code, out) == (0, ""), err
        said = [line for line in err.splitlines() if "tfdist" in line or "Traceback" in line]
        end = f"tfdist: the chief ({jobs['chief'][0]}) has ended, and so does {job} 0"
        assert said == [f"INFO:tensorflow:{end}"]


def test_ctrl_c_ends_a_server(jobs):
    config = Cluster(jobs, "ps", 0).to_tf_config()
    with listen(split_address(jobs["chief"][0])[1]) as chief:
        process = workers.start("serve", TF_CONFIG=config)
        try:
            assert select.select([chief], [], [], 60)[0]  # it serves, and looks for the chief
            process.send_signal(signal.SIGINT)
        except BaseException:
            process.kill()
            raise
        ((code, _, err),) = workers.finish([process])
    assert code == -signal.SIGINT
    assert err.endswith("KeyboardInterrupt")


def test_without_a_chief_it_gives_up(jobs, monkeypatch):
    monkeypatch.setenv("TFDIST_CONNECT_TIMEOUT", "0.3")
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    monkeypatch.setenv("no_grpc_proxy", "elsewhere")
    with pytest.raises(TimeoutError, match=rf"The chief \({jobs['chief'][0]}: .* within 0.3 s"):
        serve(Cluster({**jobs, "ps": (*jobs["ps"], "[::1]:9")}, "ps", 0))
    assert os.environ["no_grpc_proxy"] == "elsewhere,127.0.0.1,::1"


def test_a_port_in_use_is_an_error_at_once(jobs):
    with listen(split_address(jobs["worker"][0])[1]):
        with pytest.raises(OSError, match=f"in use by another .* Received: {jobs['worker'][0]}"):
            serve(Cluster(jobs, "worker", 0))


@pytest.mark.parametrize("task", ["chief", "evaluator"])
def test_others_do_not_serve(jobs, task):
    with listen(split_address(jobs["chief"][0])[1]):
        with pytest.raises(ValueError, match=f"Only a worker or ps serves.* task={task} 0"):
            serve(Cluster(jobs, task, 0))


def test_a_cluster_that_lacks_a_part_is_refused(jobs):
    del jobs["chief"]
    with pytest.raises(ValueError, match="needs a `chief`"):
        serve(Cluster(jobs, "ps", 0))
