"""What Linux lets this process use: memory and cores, and the limits of its control groups.

Needs no TensorFlow. On other systems there is no limit, and nothing is known about memory.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator

_GROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_GROUPS = pathlib.Path("/proc/self/cgroup")
_MEMORY = pathlib.Path("/proc/meminfo")
_UNLIMITED = 2**60  # bytes; the first version of cgroups writes a number like this for no limit


def memory_of_host(source: pathlib.Path = _MEMORY) -> dict[str, int]:
    """What Linux says about the host's memory, in bytes: "MemTotal", "MemAvailable" and others.

    Args:
        source: the file that says so.
    """
    rows = (line.split() for line in text_of(source).splitlines())
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows}


def memory_limit(own: pathlib.Path = _OWN_GROUPS, groups: pathlib.Path = _GROUPS) -> int | None:
    """The bytes that the control groups of this process allow; None for no limit.

    Args:
        own: the file that names the groups of this process, `/proc/self/cgroup`.
        groups: where the groups are.
    """
    return min((limit for limit, _ in _memory_of_groups(own, groups)), default=None)


def free_memory(
    own: pathlib.Path = _OWN_GROUPS,
    groups: pathlib.Path = _GROUPS,
    source: pathlib.Path = _MEMORY,
) -> int | None:
    """The bytes that this process can still get: of the host, within its control groups.

    Files that Linux keeps in memory count as free, as Linux drops them for programs.

    Args:
        own: as for `memory_limit`.
        groups: as for `memory_limit`.
        source: as for `memory_of_host`.

    Returns:
        None where it is not known.
    """
    groups_left = _memory_of_groups(own, groups)
    left = [limit - used for limit, used in groups_left if used is not None]
    if (available := memory_of_host(source).get("MemAvailable")) is not None:
        left.append(available)
    return max(0, min(left)) if left else None


def core_limit(own: pathlib.Path = _OWN_GROUPS, groups: pathlib.Path = _GROUPS) -> float | None:
    """The cores' worth of time that the control groups of this process allow; None for no limit.

    Args:
        own: as for `memory_limit`.
        groups: as for `memory_limit`.
    """
    limits = []
    for folder, is_first in _folders(own, groups, "cpu"):
        text = text_of(folder / ("cpu.cfs_quota_us" if is_first else "cpu.max"))
        quota, _, period = text.partition(" ")
        if quota.isdigit():
            limits.append(int(quota) / int(period or 100_000))
    return min(limits, default=None)


def text_of(path: str | pathlib.Path) -> str:
    """The text of a file of Linux; empty where there is none."""
    with contextlib.suppress(OSError):
        return pathlib.Path(path).read_text().strip()
    return ""


def _memory_of_groups(own: pathlib.Path, groups: pathlib.Path) -> Iterator[tuple[int, int | None]]:
    """The limit of each control group that has one, and what is used of it if known, in bytes."""
    for folder, is_first in _folders(own, groups, "memory"):
        limit = text_of(folder / ("memory.limit_in_bytes" if is_first else "memory.max"))
        if not limit.isdigit() or int(limit) >= _UNLIMITED:
            continue
        used = text_of(folder / ("memory.usage_in_bytes" if is_first else "memory.current"))
        rows = [line.split() for line in text_of(folder / "memory.stat").splitlines()]
        files = dict(rows).get("total_inactive_file" if is_first else "inactive_file", 0)
        yield int(limit), int(used) - int(files) if used.isdigit() else None


def _folders(
    own: pathlib.Path, groups: pathlib.Path, controller: str
) -> Iterator[tuple[pathlib.Path, bool]]:
    """The folders of this process' groups, and of the groups around these.

    Args:
        own: as for `memory_limit`.
        groups: as for `memory_limit`.
        controller: what the limits are about.

    Yields:
        A folder, and whether it is one of the first version of cgroups.
    """
    for line in text_of(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        inside = root / path.lstrip("/")
        for folder in (inside, *inside.parents):
            yield folder, bool(controllers)
            if folder == root:
                break
