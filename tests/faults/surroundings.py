"""What is around the processes of a job: the disk and the clock."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import time
from collections.abc import Iterator

import pytest

_CLOCK = pathlib.Path(__file__).with_name("clock.c")


def clock(folder: pathlib.Path) -> dict[str, str]:
    """A clock that can be set one day forward.

    Args:
        folder: an existing folder for what it needs.

    Returns:
        The environment variables of processes that have this clock. All of them are one day ahead
        as soon as there is the file CLOCK_IS_AHEAD.
    """
    library = folder / "clock.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(_CLOCK), "-ldl"]
    subprocess.run(command, check=True)
    return {"LD_PRELOAD": str(library), "CLOCK_IS_AHEAD": str(folder / "ahead")}


@contextlib.contextmanager
def small_disk(path: pathlib.Path, size: int) -> Iterator[None]:
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


@contextlib.contextmanager
def around(kind: str, folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """What is around a job: the environment variables of its processes.

    Args:
        kind: "" for nothing, "clock" for one that can be set, and "disk" for a disk for temporary
            files that is soon full.
        folder: an existing one.
    """
    if kind == "clock":
        yield clock(folder)
    elif kind == "disk":
        with small_disk(folder / "disk", 8192):
            yield {"TMPDIR": str(folder / "disk")}
    else:
        yield {}


def left_behind(folder: pathlib.Path, within: float = 5.0) -> list[str]:
    """The command lines of processes that were started in a folder, and have not ended.

    Args:
        folder: the working directory of all processes of a job, or a folder above.
        within: seconds in which they may end.
    """
    end = time.monotonic() + within
    while (found := _working_in(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def _working_in(folder: pathlib.Path) -> list[str]:
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            place = (process / "cwd").readlink()
            if place == folder or folder in place.parents:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"{process.name}: {command.decode(errors='replace').strip()}")
    return found
