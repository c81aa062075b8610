"""The scripts for Slurm: who gets a signal, and what is started again. Slurm's part is played."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "examples" / "slurm"

# `tfdist run` ends with STATUS, or one second after SIGTERM with 143. It notes what it was given.
_PLAYED = {
    "tfdist": """#!/bin/bash
trap 'sleep 1; exit 143' TERM
echo "$@" > started
if [ -n "$STATUS" ]; then exit "$STATUS"; fi
sleep 60 & wait
""",
    "srun": """#!/bin/bash
while [ "$1" != tfdist ]; do shift; done
exec "$@"
""",
    "scontrol": """#!/bin/bash
if [ "$1" = show ]; then printf 'node%s\\n' 1 2 3 4; else echo "$@" > requeued; fi
""",
    "scancel": """#!/bin/bash
echo "$@" > cancelled
""",
    "hostname": """#!/bin/bash
echo node7
""",
}


@pytest.fixture
def start(tmp_path):
    """Starts a script as Slurm does, in a folder that holds what the script has done."""
    for name, text in _PLAYED.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    started = []

    def start(script, status="", **variables):
        environment = {
            "HOME": str(tmp_path),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "STATUS": status,
            "SLURM_JOB_ID": "12",
            "SLURM_ARRAY_JOB_ID": "11",
            "SLURM_ARRAY_TASK_ID": "0",
            "SLURM_JOB_NODELIST": "node[1-4]",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_SUBMIT_DIR": str(tmp_path),
            **variables,
        }
        command = ["bash", str(SCRIPTS / script), "train.py", "--epochs", "3"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, start_new_session=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.stderr.close()
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def wait_for(path, seconds=20):
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} is not there"
        time.sleep(0.02)


def ended(process):
    return process.wait(timeout=20)


def test_the_first_task_says_where_the_rendezvous_is(start, tmp_path):
    other = start("elastic_array.sh", "0", SLURM_ARRAY_TASK_ID="2")
    time.sleep(0.3)
    assert not (tmp_path / "started").exists()  # it does not know the host yet
    assert ended(start("elastic_array.sh", "0")) == 0
    assert ended(other) == 0
    options = (tmp_path / "started").read_text().split()
    assert options[options.index("--rendezvous") + 1] == "node7:2222"
    assert options[-3:] == ["train.py", "--epochs", "3"]
    assert not (tmp_path / "requeued").exists()
    assert (tmp_path / "cancelled").read_text().split() == ["--state=PENDING", "11"]


def test_other_tasks_come_to_the_first_one(start, tmp_path):
    (tmp_path / "rendezvous-11").write_text("node3\n")
    assert ended(start("elastic_array.sh", "0", SLURM_ARRAY_TASK_ID="2")) == 0
    options = (tmp_path / "started").read_text().split()
    assert options[options.index("--rendezvous") + 1] == "node3:2222"
    assert not (tmp_path / "cancelled").exists()


@pytest.mark.parametrize("late", ["0", "2"])
@pytest.mark.parametrize("last", ["0", "1"])
def test_a_task_that_gets_its_machine_after_the_end_trains_nothing(last, late, start, tmp_path):
    (tmp_path / "rendezvous-11").write_text("node3\n")
    assert ended(start("elastic_array.sh", "0", SLURM_ARRAY_TASK_ID=last)) == 0
    (tmp_path / "started").unlink()
    assert ended(start("elastic_array.sh", "75", SLURM_ARRAY_TASK_ID=late)) == 0
    assert not (tmp_path / "started").exists() and not (tmp_path / "requeued").exists()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_nobody_comes_to_a_first_task_that_leaves(number, start, tmp_path):
    """A task that comes to its machine would serve a second job."""
    process = start("elastic_array.sh")
    wait_for(tmp_path / "started")
    time.sleep(0.2)
    process.send_signal(number)
    assert ended(process) == 143
    assert not (tmp_path / "rendezvous-11").exists()


def test_nobody_comes_to_a_first_task_whose_job_failed(start, tmp_path):
    assert ended(start("elastic_array.sh", "75")) == 75
    assert not (tmp_path / "rendezvous-11").exists()


def test_a_first_task_that_fails_after_the_end_does_not_take_that_back(start, tmp_path):
    process = start("elastic_array.sh")
    wait_for(tmp_path / "started")
    (tmp_path / "rendezvous-11").write_text("over\n")
    process.send_signal(signal.SIGUSR1)
    assert ended(process) == 143
    assert (tmp_path / "rendezvous-11").read_text() == "over\n"


def test_other_tasks_leave_and_the_first_one_stays_where_it_is(start, tmp_path):
    (tmp_path / "rendezvous-11").write_text("node3\n")
    assert ended(start("elastic_array.sh", "75", SLURM_ARRAY_TASK_ID="1")) == 75
    assert (tmp_path / "rendezvous-11").read_text() == "node3\n"


def test_a_task_that_waits_for_the_first_one_comes_again_too(start, tmp_path):
    process = start("elastic_array.sh", SLURM_ARRAY_TASK_ID="1")
    time.sleep(0.3)
    process.send_signal(signal.SIGUSR1)
    assert ended(process) == 75
    assert (tmp_path / "requeued").exists() and not (tmp_path / "started").exists()


@pytest.mark.parametrize(("number", "again"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_machine_that_is_asked_to_leave_comes_again_unless_it_was_cancelled(
    number, again, start, tmp_path
):
    process = start("elastic_array.sh")
    wait_for(tmp_path / "started")
    time.sleep(0.2)
    process.send_signal(number)  # to the shell alone, as `--signal=B:` and `scancel --batch` do
    assert ended(process) == 143
    assert (tmp_path / "requeued").exists() == again


@pytest.mark.parametrize("script", ["elastic_array.sh", "elastic_allocation.sh"])
@pytest.mark.parametrize(
    ("status", "restarts", "again"), [("75", "", True), ("75", "5", False), ("0", "", False)]
)
def test_too_few_ranks_start_again_some_times(script, status, restarts, again, start, tmp_path):
    process = start(script, status, SLURM_RESTART_COUNT=restarts)
    assert ended(process) == int(status)
    assert (tmp_path / "requeued").exists() == again
    if again:
        assert (tmp_path / "requeued").read_text().split() == ["requeue", "12"]


def test_an_allocation_whose_time_is_over_starts_again(start, tmp_path):
    assert ended(start("elastic_allocation.sh", "143", SLURM_RESTART_COUNT="9")) == 143
    assert (tmp_path / "requeued").exists()


def test_the_first_node_of_an_allocation_serves(start, tmp_path):
    assert ended(start("elastic_allocation.sh", "1")) == 1
    options = (tmp_path / "started").read_text().split()
    assert options[options.index("--rendezvous") + 1] == "node1:2222"
    assert not (tmp_path / "requeued").exists()
