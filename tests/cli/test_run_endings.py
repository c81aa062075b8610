"""However the launcher ends, and whatever a rank does then, nothing hangs and nothing is left."""

import signal
import subprocess
import time

import pytest

from tests.cli.launching import alive, all_end, messages

# A rank that starts another process, and stays until somebody ends it.
STAYS = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(f"child-{rank}", child.pid)
    time.sleep(600)
"""
EVERYTHING = ("pid-0", "pid-1", "child-0", "child-1")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_ending_the_launcher_ends_everything(launcher, number, status):
    process = launcher.start(STAYS)
    launcher.wait_for(*EVERYTHING)
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == status
    assert f"ended by {number.name}, and all ranks with it" in errors.decode()
    assert all_end(launcher.pids(*EVERYTHING), within=0.1)


def test_killing_the_launcher_ends_everything(launcher):
    process = launcher.start(STAYS, streams=subprocess.DEVNULL)
    launcher.wait_for(*EVERYTHING)
    process.kill()
    process.wait()
    assert all_end(launcher.pids(*EVERYTHING), within=3)


def test_killing_the_launcher_while_it_starts_leaves_nothing(launcher):
    for delay in (0, 0.005, 0.01, 0.02, 0.04, 0.08):
        process = launcher.start(STAYS, count=4, streams=subprocess.DEVNULL)
        launcher.wait_for("pid-0")
        time.sleep(delay)
        process.kill()
        process.wait()
        end = time.monotonic() + 5
        while left := launcher.processes():
            assert time.monotonic() < end, left
            time.sleep(0.05)
        (launcher.directory / "pid-0").unlink()


def test_ctrl_c_reaches_each_rank_once(launcher):
    body = """
    count = 0
    def handler(*_):
        global count
        count += 1
    signal.signal(signal.SIGINT, handler)
    note(f"ready-{rank}")
    end = time.monotonic() + 600
    while not count and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.5)
    note(f"signals-{rank}", count)
    """
    process = launcher.start(body)
    launcher.wait_for("ready-0", "ready-1")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "ended by SIGINT" in errors.decode()
    assert [launcher.note(f"signals-{rank}") for rank in range(2)] == ["1", "1"]


def test_a_rank_that_does_not_want_to_end_is_killed(launcher):
    body = """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    note(f"ready-{rank}")
    time.sleep(600)
    """
    process = launcher.start(body, "--grace-period", "1")
    launcher.wait_for("ready-0", "ready-1")
    started = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=10)
    assert 1 <= time.monotonic() - started < 4
    assert all_end(launcher.pids("pid-0", "pid-1"), within=0.1)


def test_a_second_ctrl_c_ends_the_patience(launcher):
    body = """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    note(f"ready-{rank}")
    time.sleep(600)
    """
    process = launcher.start(body, "--grace-period", "300")
    launcher.wait_for("ready-0", "ready-1")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def test_a_job_ends_at_its_timeout(launcher):
    body = """
    if rank != 1:
        time.sleep(600)
    """
    finished = launcher.run(body, "--timeout", "2", count=3)
    assert launcher.seconds_since("pid-0") < 8
    assert finished.returncode == 124
    assert "the job was ended after 2 s (--timeout); ranks 0, 2 still ran" in messages(finished)[0]


def test_a_job_in_time_has_no_timeout(launcher):
    assert launcher.run("time.sleep(0.5)", "--timeout", "30").returncode == 0


def test_a_stopped_rank_ends_the_job(launcher):
    body = """
    def end(*_):
        note(f"ended-{rank}")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
    if rank == 1:
        wait_for("pid-0")
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
    """
    finished = launcher.run(body, "--stall-timeout", "1")
    assert launcher.seconds_since("pid-0") < 8
    assert finished.returncode == 124
    assert "rank 1 was stopped (SIGSTOP) for more than 1 s" in messages(finished)[0]
    launcher.wait_for("ended-0", "ended-1", timeout=0)


def test_a_stopped_rank_is_named_when_another_gives_up_first(launcher):
    body = """
    if rank == 1:
        wait_for("pid-0")
        os.kill(os.getpid(), signal.SIGSTOP)
    wait_for("pid-1")
    time.sleep(0.5)
    sys.exit(3)
    """
    finished = launcher.run(body, "--stall-timeout", "60")
    assert finished.returncode == 124
    message = "rank 1 was stopped (SIGSTOP), and rank 0 then ended with exit status 3"
    assert message in messages(finished)[0]


def test_a_rank_that_is_stopped_for_short_times_goes_on(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1")
        other = int((here / "pid-1").read_text())
        for _ in range(2):
            os.kill(other, signal.SIGSTOP)
            time.sleep(0.7)
            os.kill(other, signal.SIGCONT)
            time.sleep(0.7)
        note("finish")
    wait_for("finish")
    print("done")
    """
    finished = launcher.run(body, "--stall-timeout", "1.3")
    assert finished.returncode == 0
    assert b"[1] done\n" in finished.stdout


def test_what_a_rank_leaves_behind_is_ended_and_delays_nothing(launcher):
    """Here a process that keeps the rank's output open."""
    body = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(f"child-{rank}", child.pid)
    """
    finished = launcher.run(body)
    assert finished.returncode == 0
    assert launcher.seconds_since("pid-0") < 8
    assert all_end(launcher.pids("child-0", "child-1"), within=0.1)


def test_what_a_lost_rank_leaves_behind_is_ended_while_the_others_go_on(launcher):
    body = """
    number = os.environ["TFDIST_ELASTIC"].partition(":")[2]
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(f"child-{number}", child.pid)
    if number == "1":
        wait_for("child-0")
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)
    """
    launcher.start(body, "--min", "1", "--restarts", "1", streams=subprocess.DEVNULL)
    launcher.wait_for("child-2")
    lost, *others = launcher.pids("child-1", "child-0", "child-2")
    assert all_end([lost], within=0.1)
    assert all(alive(pid) for pid in others)


def test_a_launcher_whose_output_nobody_reads_ends(launcher):
    body = """
    while True:
        print("a line")
        time.sleep(0.01)
    """
    process = launcher.start(body)
    launcher.wait_for("pid-0", "pid-1")
    assert process.stdout.readline().endswith(b"a line\n")
    process.stdout.close()
    process.wait(timeout=10)
    process.stderr.close()
    assert process.returncode == 128 + signal.SIGPIPE
    assert all_end(launcher.pids("pid-0", "pid-1"), within=0.1)


def test_an_ignored_signal_stays_ignored(launcher):
    """That is how nohup works."""
    body = """
    note(f"ready-{rank}")
    wait_for("finish")
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = launcher.start(body)
    finally:
        signal.signal(signal.SIGHUP, before)
    launcher.wait_for("ready-0", "ready-1")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    (launcher.directory / "finish").touch()
    process.communicate(timeout=10)
    assert process.returncode == 0
