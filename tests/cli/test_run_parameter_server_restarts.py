"""A parameter server that fails is started again, a limited number of times."""

import re

from tests.cli.launching import all_end, messages
from tests.cli.serving import pids, script

# How often this process was started before.
COUNTED = """
def starts():
    path = here / f"starts-{rank}"
    number = len(path.read_text()) if path.exists() else 0
    path.write_text("x" * (number + 1))
    return number


"""


def test_a_parameter_server_that_is_killed_is_started_again_at_the_same_address(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "up-0")
        kill("ps-0", signal.SIGKILL)
        wait_for("up-1")
        print("trained")
        sys.exit()
    if rank == "ps-0":
        number = starts()
        print(f"life {number}", flush=True)
        note(f"up-{number}", config["cluster"]["ps"][0])
    serve()
    """
    finished = launcher.run(COUNTED + script(body), "--ps", "1", "--log-dir", launcher.directory)
    assert finished.returncode == 0
    assert b"trained\n" in finished.stdout
    assert launcher.note("up-0") == launcher.note("up-1")
    (said,) = messages(finished)
    assert re.fullmatch(
        r"tfdist run: ps 0 was killed by SIGKILL \(9; .*\) after [\d.]+ s; it is started again "
        r"\(1 of 3\)",
        said,
    )
    assert (launcher.directory / "ps-0.log").read_bytes() == b"life 0\nlife 1\n"
    assert b"[ps 0] life 1\n" in finished.stdout
    assert all_end(pids(launcher, "0", "1", "ps-0"), within=0.1)


def test_one_that_fails_too_often_ends_the_job(launcher):
    body = """
    if rank == 0:
        wait_for("over")
        sys.exit("ps 1 is lost")
    if rank == "ps-1":
        wait_for("pid-0", "pid-1", "pid-ps-0")
        if starts() == 2:
            note("over")
        sys.exit(3)
    time.sleep(600)
    """
    options = ("--ps", "2", "--ps-restarts", "2")
    finished = launcher.run(COUNTED + script(body), *options)
    assert finished.returncode == 3
    assert launcher.note("starts-ps-1") == "xxx"
    first, second, end, *_ = messages(finished)
    assert "ps 1 ended with exit status 3 after" in first
    assert first.endswith("; it is started again (1 of 2)")
    assert second.endswith("; it is started again (2 of 2)")
    assert "ps 1 ended with exit status 3" in end
    assert "rank 0 then failed too; the other ranks were ended" in end
    assert all_end(pids(launcher, "0", "1", "ps-0", "ps-1"), within=0.1)


def test_what_the_dead_one_has_left_behind_is_ended_first(launcher):
    """It might keep the port."""
    body = """
    if rank == 0:
        wait_for("pid-1", "child")
        kill("ps-0", signal.SIGKILL)
        wait_for("again")
        state = Path(f"/proc/{(here / 'child').read_text()}/stat")
        sys.exit(state.exists() and state.read_text().rpartition(") ")[2][0] != "Z")
    if rank == "ps-0" and starts() == 0:
        note("child", subprocess.Popen(["sleep", "600"]).pid)
    elif rank == "ps-0":
        note("again")
    serve()
    """
    finished = launcher.run(COUNTED + script(body), "--ps", "1")
    assert finished.returncode == 0


def test_restarts_without_parameter_servers_are_refused(launcher):
    finished = launcher.run("", "--ps-restarts", "1")
    assert finished.returncode == 2
    assert b"--ps-restarts is for parameter servers" in finished.stderr


def test_none_is_started_again_when_the_chief_has_ended(launcher):
    body = """
    if rank == 0:
        wait_for("pid-1", "pid-ps-0", "pid-evaluator-0")
        sys.exit()
    if rank == "ps-0":
        starts()
        wait_for_end(0)
        note("failed")
        sys.exit(1)
    if rank == "evaluator-0":
        wait_for("failed")
        time.sleep(1.0)
        sys.exit()
    serve()
    """
    finished = launcher.run(COUNTED + script(body), "--ps", "1", "--evaluator")
    assert finished.returncode == 0
    assert launcher.note("starts-ps-0") == "x"
    assert b"started again" not in finished.stderr
