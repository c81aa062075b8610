"""What happens around ranks: they are stopped for a while, a disk is full, a clock is set."""

import contextlib
import pathlib
import subprocess

import pytest

from tests.elastic.test_faults import ENGINES, check, train
from tests.elastic.test_faults import one_device as one_device  # a fixture

CLOCK = pathlib.Path(__file__).with_name("clock.c")
pytestmark = [pytest.mark.full, pytest.mark.parametrize("engine", ENGINES)]


def test_one_that_is_stopped_for_a_while_stays(engine, tmp_path, one_device):
    done = train(tmp_path, engine, "1:PAUSE:step 3", stall=60)
    assert done.returncode == 0, done.stderr
    assert "training goes on" not in done.stderr, "nobody was lost"
    check(tmp_path, [0, 1, 2], one_device())


def test_a_clock_may_be_set(engine, tmp_path, one_device):
    library = str(tmp_path / "clock.so")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, str(CLOCK), "-ldl"], check=True)
    ahead = tmp_path / "ahead"
    variables = {"LD_PRELOAD": library, "CLOCK_IS_AHEAD": str(ahead)}
    faults = ("2:CLOCK:step 3", "1:SIGKILL:step 6")
    done = train(tmp_path, engine, *faults, least=3, restarts=1, **variables)
    assert done.returncode == 0, done.stderr
    assert ahead.exists()
    check(tmp_path, [0, 2, 3], one_device())


@contextlib.contextmanager
def small_disk(path, size):
    """A disk of so many bytes; skips the test where none can be mounted."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"a disk cannot be mounted: {made.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_full_disk_of_the_launcher_does_not_end_training(engine, tmp_path, one_device):
    disk = tmp_path / "disk"
    with small_disk(disk, 8192):
        faults = ("1:SIGKILL:step 8",)
        done = train(tmp_path, engine, *faults, restarts=1, TMPDIR=str(disk))
    assert done.returncode == 0, done.stderr
    assert "cannot join the others: the disk is full" in done.stderr
    check(tmp_path, [0, 2], one_device())
