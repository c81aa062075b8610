"""However a rank ends, nothing hangs, nothing is left, and it is said plainly."""

import signal
import subprocess

import pytest

from tests.cli.launching import all_end, messages


def test_a_rank_that_fails_ends_the_others(launcher):
    body = """
    for i in range(20):
        print("line", i)
    if rank == 1:
        wait_for("pid-0")
        print("the reason", file=sys.stderr)
        sys.exit(3)
    time.sleep(600)
    """
    finished = launcher.run(body)
    assert launcher.seconds_since("pid-0") < 10
    assert finished.returncode == 3
    said = messages(finished)
    assert "rank 1 ended with exit status 3 after" in said[0]
    assert "the other ranks were ended" in said[0]
    assert str(launcher.temporary) in said[-1]
    errors = finished.stderr.decode()
    tail = errors.partition("the last lines of rank 1:\n")[2].partition("tfdist run: ")[0]
    assert len(tail.splitlines()) == 15
    assert "[1] line 19" in tail and "[1] the reason" in tail
    assert "[1] line 5\n" not in tail
    assert launcher.logs()["rank-0.log"].startswith(b"line 0\nline 1\n")
    assert b"the reason\n" in launcher.logs()["rank-1.log"]
    assert all_end(launcher.pids("pid-0", "pid-1"), within=0.1)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGINT"])
def test_a_rank_that_is_killed_is_named_with_the_signal(launcher, name):
    number = signal.Signals[name]
    body = f"""
    signal.signal({number}, signal.SIG_DFL) if {number} != 9 else None
    if rank == 1:
        wait_for("pid-0")
        os.kill(os.getpid(), {number})
    time.sleep(600)
    """
    finished = launcher.run(body)
    assert finished.returncode == 128 + number
    assert f"rank 1 was killed by {name} ({number.value}" in messages(finished)[0]
    assert "rank 1 printed nothing" in messages(finished)[1]


def test_the_first_death_is_told_though_the_others_fail_too(launcher):
    """As TensorFlow's workers do when one of them is killed."""
    body = """
    if rank == 2:
        wait_for("pid-0", "pid-1")
        os.kill(os.getpid(), signal.SIGKILL)
    wait_for("pid-2")
    victim = int((here / "pid-2").read_text())
    while Path(f"/proc/{victim}/stat").read_text().rpartition(") ")[2][0] != "Z":
        time.sleep(0.001)
    sys.exit("a peer is gone")
    """
    for _ in range(3):
        finished = launcher.run(body, count=3)
        assert finished.returncode == 137
        assert "rank 2 was killed by SIGKILL" in messages(finished)[0]
        assert "; ranks 0, 1 then failed too" in messages(finished)[0]
        for rank in range(3):
            (launcher.directory / f"pid-{rank}").unlink()


@pytest.mark.parametrize("teardown", [0.6, 2.5])
def test_the_rank_whose_exception_came_first_is_told_though_it_ends_last(launcher, teardown):
    """As under Horovod, which closes its connections while Python shuts down."""
    body = f"""
    import atexit
    if rank == 1:
        wait_for("pid-0")
        atexit.register(lambda: (note("closed"), time.sleep({teardown})))
        raise RuntimeError("the reason")
    wait_for("closed")
    time.sleep(0.2)
    raise RuntimeError("lost connection")
    """
    finished = launcher.run(body)
    assert "rank 1 ended with exit status 1" in messages(finished)[0]
    assert "; rank 0 then failed too" in messages(finished)[0]
    assert b"[1] RuntimeError: the reason\ntfdist run: all that" in finished.stderr


def test_a_traceback_of_long_ago_is_no_failure(launcher):
    body = """
    if rank == 0:
        print("Traceback (most recent call last):", flush=True)
        note("printed")
        wait_for("killed")
        time.sleep(0.3)
        os._exit(1)
    wait_for("printed")
    time.sleep(0.5)
    note("killed")
    os.kill(os.getpid(), signal.SIGKILL)
    """
    short = "from tfdist.launcher import rank; rank._TEARDOWN = 0.5"
    main = "import sys; from tfdist.cli.main import main; sys.exit(main())"
    command = launcher.command(body)
    command[1:3] = ["-c", f"{short}\n{main}"]
    finished = subprocess.run(command, env=launcher.environment(), capture_output=True, check=False)
    assert "rank 1 was killed by SIGKILL" in messages(finished)[0]


def test_a_rank_that_was_killed_is_told_also_when_several_are_found_dead_at_once(launcher):
    body = """
    note(f"ready-{rank}")
    wait_for("stopped")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(1)
    """
    process = launcher.start(body, count=3)
    launcher.wait_for("ready-0", "ready-1", "ready-2")
    process.send_signal(signal.SIGSTOP)
    (launcher.directory / "stopped").touch()
    assert all_end(launcher.pids("pid-0", "pid-1", "pid-2"), within=10)
    process.send_signal(signal.SIGCONT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 137
    assert b"rank 1 was killed by SIGKILL" in errors


LOSES_A_PEER = """
    if rank == {left}:
        print("bye")
        sys.exit(0)
    wait_for("pid-{left}")
    time.sleep(0.5)
    print("Traceback (most recent call last):", file=sys.stderr)
    print("ConnectionError: Rank 0 lost its connection to {whom}: it has", file=sys.stderr)
    sys.exit(1)
"""


@pytest.mark.parametrize(
    ("left", "whom"), [(1, "rank 1 (a:1)"), (1, "another rank"), (0, "rank 0")]
)
def test_a_rank_that_left_in_the_middle_is_named(launcher, left, whom):
    finished = launcher.run(LOSES_A_PEER.format(left=left, whom=whom), count=3)
    assert finished.returncode == 1
    said = messages(finished)
    assert (
        f"rank {left} ended with status 0 before the others, which were still training" in said[0]
    )
    others = ", ".join(str(rank) for rank in range(3) if rank != left)
    assert f"ranks {others} then failed" in said[0]
    assert said[1].endswith(f"the last lines of rank {left}:")
    assert f"[{left}] bye\n" in finished.stderr.decode()


def test_a_rank_that_takes_its_time_to_leave_is_named_too(launcher):
    finished = launcher.run("""
    if rank == 1:
        wait_for("failed")
        time.sleep(2)
        sys.exit(0)
    print("ConnectionError: Rank 0 lost its connection to another rank", file=sys.stderr)
    note("failed")
    sys.exit(1)
    """)
    assert "rank 1 ended with status 0 before the others" in messages(finished)[0]


def test_a_rank_that_fails_by_itself_is_named_though_another_one_has_ended(launcher):
    finished = launcher.run("""
    if rank == 1:
        sys.exit(0)
    wait_for("pid-1")
    time.sleep(0.5)
    raise OSError("the disk is full")
    """)
    assert "rank 0 ended with exit status 1" in messages(finished)[0]
    assert "rank 1" not in messages(finished)[0]


def test_a_rank_that_is_done_early_ends_nobody(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1")
        time.sleep(1.5)
        # Its number is not given to another process while the job runs.
        other = (here / "pid-1").read_text()
        print(Path(f"/proc/{other}/stat").read_text().rpartition(") ")[2][0])
    """
    finished = launcher.run(body)
    assert (finished.returncode, finished.stdout) == (0, b"Z\n")


def test_a_failure_after_others_are_done_counts(launcher):
    finished = launcher.run("sys.exit(7 if rank == 1 else 0)")
    assert finished.returncode == 7
    assert "ended" in messages(finished)[0] and "other" not in messages(finished)[0]
