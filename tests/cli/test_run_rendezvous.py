"""`tfdist run --rendezvous` on several machines; here all of them are this one."""

import json
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.cli.launching import Launcher, all_end
from tests.cli.machines import NOTES, SECRET, said, start, wait_until_served

STAYS = NOTES + "    time.sleep(600)\n"
FAILS = """
    if rank == 2:
        wait_for("task-0", "task-1")
        sys.exit(7)
"""


def both(two, body, address, *options, **arguments):
    """The first serves, with 2 ranks; the other has 1."""
    first, second = two
    serving = start(first, body, address, *options, count=2, notes=first, **arguments)
    wait_until_served(address)
    return serving, start(second, body, address, *options, notes=first, **arguments)


def two_of_three(two, body, address):
    """The launchers of two machines, which wait for a third one."""
    first, second = two
    serving = start(first, body, address, machines=3, notes=first)
    wait_until_served(address)
    other = start(second, body, address, machines=3, notes=first)
    while b"2 of 3" not in serving.stderr.readline():
        pass
    return serving, other


def test_ranks_are_numbered_over_all_machines_and_do_not_learn_the_secret(two, address):
    processes = both(two, NOTES + '    print("here")\n', address)
    (status, shown, _), (other_status, other_shown, _) = map(said, processes)
    assert (status, other_status) == (0, 0)
    assert sorted(shown.split()) == ["[1]", "here", "here"]  # a line may be shown in two parts
    assert other_shown == "[2] here\n"
    tasks = [json.loads(two[0].note(f"task-{rank}")) for rank in range(3)]
    assert [task["index"] for task, _, _ in tasks] == [0, 1, 2]
    clusters = [cluster for _, cluster, _ in tasks]
    assert clusters[0] == clusters[1] == clusters[2] and len(set(clusters[0]["worker"])) == 3
    assert not any(knows for _, _, knows in tasks)


def test_a_failure_on_one_machine_ends_the_others_with_its_status(two, address):
    processes = both(two, NOTES + FAILS + "    time.sleep(600)\n", address)
    (status, _, errors), (other_status, _, other_errors) = map(said, processes)
    assert (status, other_status) == (7, 7)
    assert "on 127.0.0.1, rank 2 ended with exit status 7" in errors
    assert "the ranks of all machines were ended" in errors
    assert "tfdist run: rank 2 ended with exit status 7" in other_errors
    assert all_end(two[0].pids("pid-0", "pid-1", "pid-2"), within=1)


@pytest.mark.parametrize("victim", [0, 1], ids=["serves", "came"])
def test_the_job_ends_when_a_launcher_is_killed(two, address, victim):
    processes = both(two, STAYS, address)
    two[0].wait_for("task-0", "task-1", "task-2")
    processes[victim].kill()
    status, _, errors = said(processes[1 - victim])
    assert status == 1
    assert "is gone" in errors and "the ranks of all machines were ended" in errors
    assert all_end(two[0].pids("pid-0", "pid-1", "pid-2"), within=3)


def test_a_signal_to_one_launcher_ends_the_job_everywhere(two, address):
    processes = both(two, STAYS, address)
    two[0].wait_for("task-0", "task-1", "task-2")
    processes[1].send_signal(signal.SIGTERM)
    (status, _, errors), (other_status, _, _) = map(said, processes)
    assert (status, other_status) == (143, 143)
    assert "on 127.0.0.1, ended by SIGTERM" in errors


def test_launchers_of_another_secret_are_refused_and_the_others_wait_on(two, address):
    first, second = two
    serving = start(first, NOTES, address, notes=first)
    wait_until_served(address)
    stranger = Launcher(second.directory / "stranger")
    wrong = {"TFDIST_SECRET": "guessed by a stranger"}
    status, _, errors = said(start(stranger, NOTES, address, environ=wrong, notes=first))
    assert status == 2 and "has another secret" in errors
    assert said(start(second, NOTES, address, notes=first))[0] == 0
    assert said(serving)[0] == 0


def test_a_connection_that_says_nothing_holds_nobody_up(two, address):
    first, second = two
    serving = start(first, NOTES, address, notes=first)
    wait_until_served(address)
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port))):
        assert said(start(second, NOTES, address, notes=first), timeout=9)[0] == 0
        assert said(serving)[0] == 0


def test_launchers_with_other_options_are_refused_before_ranks_start(two, address):
    first, second = two
    serving = start(first, NOTES, address, notes=first)
    wait_until_served(address)
    other = start(second, NOTES, address, "--strategy", "horovod", notes=first)
    for status, _, errors in map(said, (serving, other)):
        assert status == 2
        assert "the same --strategy. Received: 'multi_worker' on 127.0.0.1, and 'horovod'" in errors
    assert not list(first.directory.glob("task-*"))


def test_too_few_machines_are_told_who_came(two, address):
    first, _ = two
    process = start(first, NOTES, address, "--connect-timeout", 1, machines=3, notes=first)
    status, _, errors = said(process)
    assert status == 2
    assert "1 of 3 machines came to the rendezvous within 1 s: 127.0.0.1" in errors


def test_a_rendezvous_elsewhere_that_nobody_serves(two):
    first, _ = two
    nowhere = "192.0.2.1:2222"  # an address for documentation (RFC 5737)
    status, _, errors = said(
        start(first, NOTES, nowhere, "--connect-timeout", 1, notes=first), timeout=60
    )
    assert status == 2
    assert "Nobody serves the rendezvous 192.0.2.1:2222" in errors


@pytest.mark.parametrize(
    ("options", "environ", "message"),
    [
        (["--rendezvous", "localhost:1"], SECRET, "Received: no --machines"),
        (["--machines", "2"], SECRET, "Received: no --rendezvous"),
        (["--rendezvous", "x", "--machines", "2"], SECRET, "host:port"),
        (["--rendezvous", "localhost:1", "--machines", "2"], {}, "Received: no secret"),
        (
            ["--rendezvous", "localhost:1", "--machines", "2"],
            {"TFDIST_SECRET": "short"},
            "Received: a secret of 5 characters",
        ),
        (["--rendezvous", "localhost:1", "--machines", "2", "--isolate"], SECRET, "--isolate"),
        (
            ["--rendezvous", "localhost:1", "--machines", "2", "--ps", "1"],
            SECRET,
            "Received: --strategy parameter_server",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(two, options, environ, message):
    process = two[0].run("", *options, count=2, environ=environ)
    assert process.returncode == 2
    assert message in " ".join(process.stderr.decode().split())


def test_a_file_can_have_the_secret(two, address, tmp_path):
    path = tmp_path / "secret"
    path.write_text("in a file of each machine\n")
    by_file = both(two, NOTES, address, "--secret-file", path, environ={})
    assert [said(process)[0] for process in by_file] == [0, 0]


def test_no_tensorflow_is_needed_to_meet():
    code = "import sys, tfdist.rendezvous.machine; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_launcher_that_was_stopped_when_another_failed_learns_of_it(two, address, tmp_path):
    """It reads that the job begins and that it has failed at the same time."""
    first, _ = two
    third = Launcher(tmp_path / "third")
    serving, stopped = two_of_three(two, STAYS, address)
    stopped.send_signal(signal.SIGSTOP)
    killed = start(third, STAYS, address, machines=3, notes=first)
    first.wait_for("task-0", "task-2")
    killed.kill()
    assert killed.wait(10)
    time.sleep(0.5)
    stopped.send_signal(signal.SIGCONT)
    for process in (serving, stopped):
        assert said(process, timeout=25)[0] == 1


def test_the_cause_is_named_though_another_machine_ends_first(two, address):
    """Rank 1 is killed; rank 0 notices and ends; rank 2, beside rank 1, has not noticed yet."""
    body = NOTES + (
        "    wait_for('task-0', 'task-1', 'task-2')\n"
        "    if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    if rank == 0:\n"
        "        time.sleep(0.5)\n"
        "        raise ConnectionError('Rank 0 lost its connection to rank 1')\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    time.sleep(600)\n"
    )
    first, second = two
    serving = start(first, body, address, notes=first)
    wait_until_served(address)
    other = start(second, body, address, "--grace-period", 3, count=2, notes=first)
    for status, _, errors in map(said, (serving, other)):
        assert status == 137
        assert "rank 1 was killed by SIGKILL" in errors


@pytest.mark.parametrize("interrupted", [0, 1], ids=["serves", "came"])
def test_ctrl_c_while_others_train_on_ends_the_job(two, address, interrupted):
    """The ranks of the launcher that gets the signal have ended well already."""
    body = NOTES + f"    if (rank == 2) == bool({interrupted}): sys.exit(0)\n    time.sleep(600)\n"
    processes = both(two, body, address)
    two[0].wait_for("task-0", "task-1", "task-2")
    time.sleep(1.5)
    processes[interrupted].send_signal(signal.SIGINT)
    ends = [said(process) for process in processes]
    assert [status for status, _, _ in ends] == [130, 130]
    assert "ended by SIGINT" in ends[1 - interrupted][2]


def test_the_time_limit_holds_while_others_train_on(two, address):
    body = NOTES + "    if rank != 2: sys.exit(0)\n    time.sleep(600)\n"
    processes = both(two, body, address, "--timeout", 4)
    assert [said(process)[0] for process in processes] == [124, 124]


def test_ctrl_c_while_waiting_for_machines_ends_at_once(two, address):
    serving, other = two_of_three(two, NOTES, address)
    serving.send_signal(signal.SIGINT)
    assert said(serving)[0] == 130
    status, _, errors = said(other)
    assert status == 2 and "has ended" in errors
    assert not list(two[0].temporary.glob("tfdist-*"))


def test_who_comes_when_the_job_has_begun_is_not_kept_waiting(two, address, tmp_path):
    processes = both(two, STAYS, address)
    two[0].wait_for("task-0", "task-1", "task-2")
    late = Launcher(tmp_path / "late")
    status, _, errors = said(
        start(late, NOTES, address, "--connect-timeout", 1, notes=late), timeout=25
    )
    assert status == 2
    assert "Nobody serves" in errors or "1 of 2 machines" in errors
    processes[0].send_signal(signal.SIGTERM)
    assert [said(process)[0] for process in processes] == [143, 143]
