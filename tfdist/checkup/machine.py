"""What a rank runs on: its host, cores, memory and their limits; needs no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import socket
from collections.abc import Iterator, Sequence

from tfdist.launcher.ranks import cores

_GROUPS = pathlib.Path("/sys/fs/cgroup")
_OWN_GROUPS = pathlib.Path("/proc/self/cgroup")
_UNLIMITED = 2**60  # bytes; the first version of cgroups writes a number like this for no limit


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a rank runs on.

    Attributes:
        name: the rank, with its address where that is known.
        versions: by name; None for what is not installed.
        host: the host's name.
        place: equal for ranks on one host: the host's name, its boot, and its network.
        cores: how many CPU cores the rank may use.
        core_limit: how many cores' time its control group allows; None for no limit.
        memory_bytes: of the host.
        memory_limit_bytes: what its control group allows; None for no limit.
        available_bytes: what was free for programs: of the host's memory, and of what its control
            group allows.
        gpus: the names of its GPUs.
        device: what its first replica trains on.
    """

    name: str
    versions: dict[str, str | None]
    host: str
    place: str
    cores: int
    core_limit: float | None
    memory_bytes: int
    memory_limit_bytes: int | None
    available_bytes: int
    gpus: list[str]
    device: str


def facts_of(name: str, versions: dict[str, str | None], gpus: list[str], device: str) -> Facts:
    """What this process runs on; the arguments are those of `Facts`."""
    memory, left = _memory(), memory_left()
    free = memory.get("MemAvailable", 0)
    return Facts(
        name=name,
        versions=versions,
        host=socket.gethostname(),
        place=" ".join(
            [socket.gethostname(), _text("/proc/sys/kernel/random/boot_id"), _network()]
        ),
        cores=cores(),
        core_limit=core_limit(),
        memory_bytes=memory.get("MemTotal", 0),
        memory_limit_bytes=memory_limit(),
        available_bytes=free if left is None else min(free, left),
        gpus=gpus,
        device=device,
    )


def hosts_of(places: Sequence[str]) -> list[int]:
    """The number of each rank's host, in the order in which hosts appear.

    Example:

    >>> from tfdist.checkup.machine import hosts_of
    >>> hosts_of(["a", "b", "a"])
    [0, 1, 0]
    """
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    return [numbers[place] for place in places]


def memory_limit(own: pathlib.Path = _OWN_GROUPS, groups: pathlib.Path = _GROUPS) -> int | None:
    """The bytes that the control groups of this process allow; None for no limit.

    Args:
        own: the file that names the groups of this process, `/proc/self/cgroup`.
        groups: where the groups are.
    """
    limits = [
        int(text)
        for text in _settings(own, groups, "memory", "memory.max", "memory.limit_in_bytes")
        if text.isdigit() and int(text) < _UNLIMITED
    ]
    return min(limits, default=None)


def memory_left(own: pathlib.Path = _OWN_GROUPS, groups: pathlib.Path = _GROUPS) -> int | None:
    """The bytes that the control groups of this process still allow; None for no limit.

    The cache of files counts as free where it was not used for long: the kernel gives it up first.

    Args:
        own: as for `memory_limit`.
        groups: as for `memory_limit`.
    """
    left = []
    for folder, is_second in _folders(own, groups, "memory"):
        limit = _text(folder / ("memory.max" if is_second else "memory.limit_in_bytes"))
        used = _text(folder / ("memory.current" if is_second else "memory.usage_in_bytes"))
        if limit.isdigit() and int(limit) < _UNLIMITED and used.isdigit():
            rows = (line.split() for line in _text(folder / "memory.stat").splitlines())
            cache = {row[0]: int(row[1]) for row in rows if len(row) == 2}
            unused = cache.get("inactive_file" if is_second else "total_inactive_file", 0)
            left.append(max(0, int(limit) - int(used) + unused))
    return min(left, default=None)


def core_limit(own: pathlib.Path = _OWN_GROUPS, groups: pathlib.Path = _GROUPS) -> float | None:
    """The cores' worth of time that the control groups of this process allow; None for no limit.

    Args:
        own: as for `memory_limit`.
        groups: as for `memory_limit`.
    """
    limits = []
    for text in _settings(own, groups, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdigit():
            limits.append(int(quota) / int(period or 100_000))
    return min(limits, default=None)


def _settings(
    own: pathlib.Path, groups: pathlib.Path, controller: str, second: str, first: str
) -> Iterator[str]:
    """What a setting is in the groups of this process, and in the groups around these.

    Args:
        own: as for `memory_limit`.
        groups: as for `memory_limit`.
        controller: what the setting belongs to.
        second: the setting's name in the second version of cgroups.
        first: its name in the first version.
    """
    for folder, is_second in _folders(own, groups, controller):
        if text := _text(folder / (second if is_second else first)):
            yield text


def _folders(
    own: pathlib.Path, groups: pathlib.Path, controller: str
) -> Iterator[tuple[pathlib.Path, bool]]:
    """The groups of this process and those around these, and if they are of the second version."""
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        inside = root / path.lstrip("/")
        for folder in (inside, *inside.parents):
            yield folder, not controllers
            if folder == root:
                break


def _text(path: str | pathlib.Path) -> str:
    with contextlib.suppress(OSError):
        return pathlib.Path(path).read_text().strip()
    return ""


def _memory() -> dict[str, int]:
    """What Linux says about memory, in bytes."""
    rows = (line.split() for line in _text("/proc/meminfo").splitlines())
    return {row[0].rstrip(":"): 1024 * int(row[1]) for row in rows}


def _network() -> str:
    """What tells networks of containers on one machine apart."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")
    return ""
