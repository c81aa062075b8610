"""Machines come to a job, are lost, and leave: the others end with the weights of one device.

The machines are launchers on this machine, each with a group of processes of its own.
"""

import contextlib
import os
import pathlib
import signal
import time

import pytest

from tests.elastic import machines as machines_of_job
from tests.elastic.test_faults import ENGINES, check
from tests.elastic.test_faults import one_device as one_device  # a fixture
from tests.traffic import network

REASON = network.reason_against()
SLOWLY = {"EPOCHS": "8", "SECONDS": "0.2"}


@pytest.fixture
def machines(tmp_path):
    """Makes the machines of a job; called with the engine and faults."""
    with contextlib.ExitStack() as stack:

        def made(engine, *faults, **options):
            found = machines_of_job.Machines(tmp_path, engine, faults, **options)
            stack.callback(found.close)
            return found

        yield made


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", machines_of_job.FAULTS)
def test_the_result_is_that_of_one_device(name, engine, machines, tmp_path, one_device):
    faults, least, left, statuses = machines_of_job.FAULTS[name]
    job = machines(engine, *faults)
    options = ("--min", str(least), "--restarts", str(len(faults)) if least == 4 else "0")
    for _ in range(2):
        job.start(2, *options)
        time.sleep(0.5)  # the first one serves
    assert job.ends() == statuses, job.log(0)
    check(tmp_path, left, one_device())


@pytest.mark.full
@pytest.mark.parametrize("engine", ENGINES)
def test_a_machine_may_come_at_any_time(engine, machines, tmp_path, one_device):
    job = machines(engine, EPOCHS="8", SECONDS="0.5")
    job.start(1, "--min", "1", "--max", "3")
    job.wait_for(0, "Epoch 2/8")
    job.start(2, "--min", "1", "--max", "3")
    job.wait_for(0, "joins; training goes on with ranks 0, 1, 2")
    late = job.start(1, "--min", "1", "--max", "3")
    job.wait_for(2, "waiting for a place")
    job.launchers[1].send_signal(signal.SIGTERM)
    job.wait_for(0, "rank 3 joins; training goes on with ranks 0, 3")
    assert job.ends() == [0, 143, 0], job.log(0)
    assert late.returncode == 0
    check(tmp_path, [0, 3], one_device(8))


@pytest.mark.full
def test_who_waits_for_a_place_can_be_asked_to_end(machines, tmp_path):
    (tmp_path / "disk").mkdir()
    job = machines("multi_worker", EPOCHS="1000", SECONDS="0.1", TMPDIR=str(tmp_path / "disk"))
    job.start(1, "--min", "1", "--max", "1")
    job.wait_for(0, "Epoch 1/")
    folders = set((tmp_path / "disk").iterdir())
    asked = job.start(1, "--min", "1", "--max", "1")
    job.wait_for(1, "waiting for a place")
    asked.send_signal(signal.SIGTERM)
    assert asked.wait(10) == 143
    limited = job.start(1, "--min", "1", "--max", "1", "--timeout", "3")
    assert limited.wait(20) == 124
    assert "the job had not begun after 3 s (--timeout)" in job.log(2)
    assert set((tmp_path / "disk").iterdir()) == folders, "nothing is left behind"
    waits = job.start(1, "--min", "1", "--max", "1")
    job.wait_for(3, "waiting for a place")
    job.launchers[0].send_signal(signal.SIGTERM)
    assert waits.wait(20) == 143, "the job was ended"


@pytest.mark.full
def test_a_launcher_that_is_stopped_holds_up_nobody_for_ever(machines, tmp_path, one_device):
    job = machines("multi_worker", EPOCHS="8", SECONDS="0.2")
    for _ in range(2):
        job.start(1, "--min", "1")
        time.sleep(0.5)
    job.wait_for(0, "Epoch 2/")
    stopped = job.launchers[1]
    for process in (stopped.pid, *children(stopped.pid)):
        os.kill(process, signal.SIGSTOP)
    assert job.launchers[0].wait(100) == 0, job.log(0)
    assert "the launcher on 127.0.0.1 is silent for 30 s" in job.log(0)
    for process in (*children(stopped.pid), stopped.pid):
        os.kill(process, signal.SIGCONT)
    assert stopped.wait(30) == 75
    check(tmp_path, [0], one_device(8))


def children(pid):
    """The processes that a process has started."""
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


@pytest.mark.full
def test_one_more_rank_is_started_by_a_signal(machines, tmp_path, one_device):
    job = machines("multi_worker", "0:launcher SIGUSR1:step 2", EPOCHS="8", SECONDS="0.5")
    job.start(1, "--min", "1", "--max", "2")
    job.wait_for(0, "rank 1 joins; training goes on with ranks 0, 1")
    job.launchers[0].send_signal(signal.SIGUSR1)
    job.wait_for(0, "SIGUSR1: no rank can be added here")
    assert job.ends() == [0], job.log(0)
    check(tmp_path, [0, 1], one_device(8))


@pytest.mark.full
@pytest.mark.parametrize("signal_", ["SIGKILL", "SIGTERM"])
def test_all_end_with_the_launcher_that_serves(signal_, machines):
    job = machines("multi_worker", f"0:launcher {signal_}:step 3")
    for _ in range(2):
        job.start(1, "--min", "1")
        time.sleep(0.5)
    first, second = job.ends()
    assert (first, second) == ((-9, 75) if signal_ == "SIGKILL" else (143, 143))
    assert "is gone" in job.log(1) or "ended by SIGTERM" in job.log(1)


@pytest.mark.full
def test_a_script_that_fails_on_one_machine_ends_the_job_on_all(machines, tmp_path):
    script = "import os, tfdist\ntfdist.Strategy()\n"
    script += "if os.environ['TFDIST_ELASTIC'].endswith(':1'): raise ValueError('broken')\n"
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    (tmp_path / "tests" / "elastic").mkdir()
    (tmp_path / "tests" / "elastic" / "__init__.py").touch()
    (tmp_path / "tests" / "elastic" / "job.py").write_text(script)
    job = machines("multi_worker")
    for _ in range(2):
        job.start(1, "--min", "2")
        time.sleep(0.5)
    assert job.ends() == [1, 1]
    assert "on 127.0.0.1, rank 1 ended with exit status 1" in job.log(0)
    assert "ValueError: broken" in job.log(1)


@pytest.mark.full
@pytest.mark.skipif(bool(REASON), reason=REASON)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", machines_of_job.NETWORK)
def test_faults_of_the_network(name, engine, machines, tmp_path, one_device):
    _, left, statuses = machines_of_job.NETWORK[name]
    with machines_of_job.network_fault(name, machines(engine, **SLOWLY)) as job:
        assert job.ends() == statuses, job.log(0)
        if len(left) < 3:
            assert "rank 2 was lost, as its launcher on 10.77.0.3 is gone" in job.log(0)
            assert "the launcher that serves the rendezvous is gone" in job.log(2)
    check(tmp_path, left, one_device(8))
