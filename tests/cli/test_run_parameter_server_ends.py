"""A chief, workers and parameter servers: what the end of each of them means for the others."""

import os
import signal
import subprocess
import time

import pytest

from tests.cli.launching import all_end, messages
from tests.cli.serving import pids, script, shortened

NEVER = ("--ps-restarts", "0")


def test_the_job_ends_with_its_chief(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-2", "pid-ps-0")
        print("trained")
        sys.exit()
    if rank == 2:  # does not notice
        time.sleep(600)
    serve()
    """
    finished = launcher.run(script(body), "--ps", "1", "--grace-period", "3", count=3)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, b"trained\n", b"")
    launcher.wait_for("ended-1", "ended-ps-0", timeout=0)
    assert all_end(pids(launcher, "0", "1", "2", "ps-0"), within=0.1)


def test_a_chief_that_fails_ends_the_job(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-ps-0")
        sys.exit(3)
    time.sleep(600)
    """
    finished = launcher.run(body, "--ps", "1")
    assert finished.returncode == 3
    assert "rank 0 ended with exit status 3 after" in messages(finished)[0]
    assert all_end(pids(launcher, "0", "1", "ps-0"), within=0.1)


def test_training_goes_on_without_workers_that_are_lost(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-2", "pid-3", "pid-ps-0")
        print("1/2", end="", flush=True)
        kill(2, signal.SIGKILL)
        note("killed")
        wait_for_end(2)
        wait_for_end(3)
        time.sleep(2)  # as long as a failure would take to end the job
        print(" 2/2")
        sys.exit()
    if rank == 3:
        wait_for("killed")
        sys.exit("out of memory")
    serve()
    """
    body = body.replace("rank == 3:", 'rank == 3:\n        wait_for("pid-2")')
    finished = launcher.run(script(body), "--ps", "1", count=4)
    assert finished.returncode == 0
    assert finished.stdout.startswith(b"1/2") and finished.stdout.endswith(b" 2/2\n")
    first, second, end, logs = messages(finished)
    assert "rank 2 was killed by SIGKILL (9" in first
    assert "rank 3 ended with exit status 1 after" in second
    assert all(line.endswith(" s; training goes on without it") for line in (first, second))
    assert end == "tfdist run: training ended well, but without ranks 2, 3"
    assert str(launcher.temporary) in logs
    assert launcher.logs()["rank-3.log"] == b"out of memory\n"
    launcher.wait_for("ended-1", "ended-ps-0", timeout=0)


def test_without_any_worker_it_does_not(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-2")
        kill(2, signal.SIGKILL)
        time.sleep(0.5)
        kill(1, signal.SIGKILL)
    time.sleep(600)
    """
    finished = subprocess.run(
        shortened(launcher.command(script(body), "--ps", "1", count=3)),
        env=launcher.environment(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 137
    first, end, *_ = messages(finished)
    assert "rank 2 was killed" in first and first.endswith("training goes on without it")
    assert "rank 1 was killed by SIGKILL" in end and end.endswith("; the other ranks were ended")


def test_the_chief_has_time_to_say_what_the_loss_of_a_parameter_server_means(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-ps-0")
        kill("ps-0", signal.SIGKILL)
        time.sleep(2.5)  # longer than among equal ranks
        sys.exit("ps 0 was lost")
    time.sleep(600)
    """
    finished = launcher.run(script(body), "--ps", "2", *NEVER, timeout=40)
    assert finished.returncode == 137
    said = messages(finished)
    assert "ps 0 was killed by SIGKILL" in said[0]
    assert "; rank 0 then failed too; the other ranks were ended" in said[0]
    assert "ps 0 printed nothing" in said[1]
    assert b"ps 0 was lost\n" in finished.stderr


def test_a_parameter_server_is_told_though_the_chief_fails_before_it_has_ended(launcher):
    """One that is killed closes its connections first, and then gives its memory back."""
    body = """
    if rank == 0:
        import atexit
        wait_for("pid-1", "pid-ps-0")
        atexit.register(lambda: (note("failed"), time.sleep(0.5)))
        raise RuntimeError("lost ps 0")
    if rank == "ps-0":
        wait_for("failed")
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    """
    finished = launcher.run(body, "--ps", "1", *NEVER)
    assert finished.returncode == 137
    assert "ps 0 was killed by SIGKILL" in messages(finished)[0]
    assert "; rank 0 then failed too" in messages(finished)[0]


def test_time_runs_out_also_while_the_chief_has_time(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-ps-0")
        kill("ps-0", signal.SIGKILL)
    time.sleep(600)
    """
    finished = launcher.run(script(body), "--ps", "1", *NEVER, "--timeout", "2", timeout=40)
    assert finished.returncode == 137
    assert "ps 0 was killed by SIGKILL" in messages(finished)[0]


def test_a_chief_that_ends_well_has_done_its_job_whatever_the_others_do(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-2", "pid-ps-0")
        kill("ps-0", signal.SIGKILL)
        time.sleep(0.5)
        sys.exit()
    wait_for_end(0)
    time.sleep(rank)
    sys.exit(1)
    """
    finished = launcher.run(script(body), "--ps", "1", *NEVER, count=3)
    assert finished.returncode == 0
    assert messages(finished)[0] == "tfdist run: training ended well, but without ps 0"
    assert len(messages(finished)) == 2


def test_a_worker_that_is_stopped_is_the_chiefs_affair(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-ps-0")
        kill(1, signal.SIGSTOP)
        time.sleep(3)
        kill(1, signal.SIGCONT)
        sys.exit()
    serve()
    """
    finished = launcher.run(script(body), "--ps", "1", "--stall-timeout", "1")
    assert (finished.returncode, finished.stderr) == (0, b"")
    launcher.wait_for("ended-1", "ended-ps-0", timeout=0)


def test_the_failure_of_the_chief_counts_though_a_worker_is_stopped(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-ps-0")
        kill(1, signal.SIGSTOP)
        time.sleep(0.5)
        sys.exit(4)
    time.sleep(600)
    """
    finished = launcher.run(script(body), "--ps", "1")
    assert finished.returncode == 4
    assert "rank 0 ended with exit status 4" in messages(finished)[0]


@pytest.mark.parametrize(("name", "victim"), [("rank 0", "0"), ("ps 0", "ps-0")])
def test_others_that_are_stopped_end_the_job(launcher, name, victim):
    body = f"""
    if rank == 1:
        wait_for("pid-0", "pid-ps-0")
        kill("{victim}", signal.SIGSTOP)
    time.sleep(600)
    """
    finished = launcher.run(script(body), "--ps", "1", "--stall-timeout", "1")
    assert finished.returncode == 124
    assert f"{name} was stopped (SIGSTOP) for more than 1 s" in messages(finished)[0]


def test_ctrl_c_is_passed_on_also_while_the_chief_has_time(launcher):
    body = """
    def save(*_):
        time.sleep(0.5)
        note("saved")
        sys.exit(1)
    signal.signal(signal.SIGINT, save)
    note(f"ready-{rank}")
    time.sleep(600)
    """
    process = launcher.start(body, "--ps", "1", *NEVER, "--grace-period", "20")
    launcher.wait_for("ready-0", "ready-1", "ready-ps-0")
    (ps,) = pids(launcher, "ps-0")
    os.kill(ps, signal.SIGKILL)
    assert all_end([ps], within=10)
    time.sleep(0.5)  # the launcher has seen it
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 137
    assert b"ps 0 was killed by SIGKILL" in errors
    launcher.wait_for("saved", timeout=0)
