"""Control groups of Linux that limit the memory of processes; only root can make them.

Needs no TensorFlow, so that a process can go into its group before it imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
# Seconds until the kernel has let go of the processes of a group that have ended.
_EMPTY_SECONDS = 10


@contextlib.contextmanager
def made(mount: Path = _MOUNT) -> Iterator[Path]:
    """A group in which processes make groups of their own with `join`; all are gone afterwards.

    Args:
        mount: where the groups are.

    Raises:
        OSError: where groups of memory cannot be made.
    """
    root = mount if _is_second(mount) else mount / "memory"
    if root == mount:
        _hand_on(root)
    parent = root / f"tfdist-benchmark-{os.getpid()}"
    parent.mkdir()
    try:
        if root == mount:
            _hand_on(parent)
        yield parent
    finally:
        for group in (*_groups(parent), parent):
            _remove(group)


def join(parent: Path, limit: int) -> None:
    """Moves this process into a group of its own.

    Args:
        parent: the group of `made`.
        limit: the bytes that the process may have, without swap.
    """
    own = parent / str(os.getpid())
    own.mkdir()
    if _is_second(parent.parent):
        _write(own, "memory.max", limit)
        _write_if_there(own, "memory.swap.max", 0)
    else:
        _write(own, "memory.limit_in_bytes", limit)
        # Memory and swap together. Not all kernels count swap.
        _write_if_there(own, "memory.memsw.limit_in_bytes", limit)
        _write_if_there(own, "memory.swappiness", 0)
    _write(own, "cgroup.procs", os.getpid())


def has_killed(parent: Path) -> bool:
    """Whether Linux has killed a process of these groups because it had no memory left."""
    counts = "memory.events" if _is_second(parent.parent) else "memory.oom_control"
    rows = [line for group in _groups(parent) for line in (group / counts).read_text().splitlines()]
    return any(int(row.split()[1]) for row in rows if row.startswith("oom_kill "))


def reason_against() -> str:
    """Why groups cannot be made here; "" if they can."""
    try:
        with made():
            return ""
    except OSError as error:
        return f"limits of memory need root, and control groups that can be written: {error}"


def _is_second(root: Path) -> bool:
    """Whether the groups in this folder are of the second version of cgroups."""
    return (root / "cgroup.controllers").exists()


def _hand_on(group: Path) -> None:
    """Lets the groups in a group of the second version have limits of memory."""
    _write(group, "cgroup.subtree_control", "+memory")


def _groups(parent: Path) -> list[Path]:
    return [path for path in parent.iterdir() if path.is_dir()]


def _write(group: Path, name: str, value: object) -> None:
    # Unlike `write_text`, this makes no file where the kernel has none.
    with (group / name).open("r+") as file:
        file.write(str(value))


def _write_if_there(group: Path, name: str, value: object) -> None:
    with contextlib.suppress(FileNotFoundError):
        _write(group, name, value)


def _remove(group: Path) -> None:
    until = time.monotonic() + _EMPTY_SECONDS
    while True:
        try:
            group.rmdir()
            return
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.1)
