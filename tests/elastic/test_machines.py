"""Machines come to a job, are lost, and leave: the others end with the weights of one device.

The machines are launchers on this machine, each with a group of processes of its own.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.elastic.test_faults import DEADLINE, ENGINES, ROOT, check
from tests.elastic.test_faults import one_device as one_device  # a fixture
from tests.traffic import network
from tfdist.cluster.addresses import free_ports

REASON = network.reason_against()


class Machines:
    """The launchers of one job.

    Args:
        folder: for what the ranks write.
        engine: the name of a strategy.
        faults: as for `tests.elastic.job`.
        address: of the rendezvous; None for one on this machine.
        **environ: environment variables.
    """

    def __init__(self, folder, engine, faults, address=None, **environ):
        self._folder = folder
        self._engine = engine
        self._faults = faults
        self._address = address or f"127.0.0.1:{free_ports(1)[0]}"
        self._environ = environ
        self.launchers = []

    def start(self, count, *options, host=None):
        """Starts the launcher of one machine; on a host of its own, if that is given."""
        job = ["tfdist", "run", "-n", str(count), "--rendezvous", self._address]
        job += ["--strategy", self._engine, "--stall-timeout", "3", "--timeout", str(DEADLINE)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        variables = {"PYTHONPATH": path, "TFDIST_SECRET": "known to all launchers"}
        log = (self._folder / f"machine-{len(self.launchers)}.log").open("w")
        with log:
            start = subprocess.Popen if host is None else host.start
            launcher = start(
                [sys.executable, "-m", *job, *options, "-m", "tests.elastic.job"]
                + [str(self._folder), *self._faults],
                env=os.environ | variables | self._environ,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.launchers.append(launcher)
        return launcher

    def log(self, number):
        """What the launcher of a machine has printed."""
        return (self._folder / f"machine-{number}.log").read_text()

    def wait_for(self, number, text):
        """Waits until the launcher of a machine has printed a text."""
        end = time.monotonic() + 60
        while text not in self.log(number):
            assert time.monotonic() < end, self.log(number)
            time.sleep(0.05)

    def ends(self):
        """The exit status of each launcher. Waits for their ends."""
        return [launcher.wait(DEADLINE + 30) for launcher in self.launchers]

    def close(self):
        for launcher in self.launchers:
            with contextlib.suppress(OSError):
                os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait()


@pytest.fixture
def machines(tmp_path):
    """Makes the machines of a job; called with the engine and faults."""
    with contextlib.ExitStack() as stack:

        def made(engine, *faults, **options):
            found = Machines(tmp_path, engine, faults, **options)
            stack.callback(found.close)
            return found

        yield made


# What happens to two machines with two ranks each, of which at least four are needed, or two: the
# ranks that are left, and the statuses of the launchers.
FAULTS = {
    "the ranks of the second machine are replaced": (
        ["2:SIGKILL:step 3", "3:SIGKILL:step 3"],
        4,
        [0, 1, 4, 5],
        [0, 0],
    ),
    "those of the first one are replaced": (
        ["0:SIGKILL:step 3", "1:SIGKILL:micro 7"],
        4,
        [2, 3, 4, 5],
        [0, 0],
    ),
    "the second machine is lost": (["2:launcher SIGKILL:step 3"], 2, [0, 1], [0, -9]),
    "the second machine is preempted": (["3:launcher SIGTERM:step 3"], 2, [0, 1], [0, 143]),
    "only the second machine has ranks": (
        ["0:SIGTERM:step 3", "1:SIGTERM:step 6"],
        2,
        [2, 3],
        [0, 0],
    ),
}
USUAL = {"those of the first one are replaced"}


def _cases():
    for engine in ENGINES:
        for name in FAULTS:
            usual = engine is ENGINES[0] and name in USUAL
            marks = engine.marks if usual else (*engine.marks, pytest.mark.full)
            yield pytest.param(name, engine.values[0], marks=marks)


@pytest.mark.parametrize(("name", "engine"), list(_cases()))
def test_the_result_is_that_of_one_device(name, engine, machines, tmp_path, one_device):
    faults, least, left, statuses = FAULTS[name]
    job = machines(engine, *faults)
    options = ("--min", str(least), "--restarts", "2" if least == 4 else "0")
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
def test_a_machine_whose_network_is_cut_is_lost(engine, machines, tmp_path, one_device):
    with network.hosts(3) as hosts:
        job = machines(engine, address=f"{hosts[0].address}:2222", EPOCHS="8", SECONDS="0.2")
        for host in hosts:
            job.start(1, "--min", "2", host=host)
            time.sleep(0.5)
        job.wait_for(0, "Epoch 2/8")
        hosts[2].cut()
        assert job.ends() == [0, 0, 75], job.log(0)
        assert f"as its launcher on {hosts[2].address} is gone" in job.log(0)
        assert "the launcher that serves the rendezvous is gone" in job.log(2)
    check(tmp_path, [0, 1], one_device(8))
