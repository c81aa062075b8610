"""What a rank runs on: its host, cores, memory and their limits; needs no TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
from collections.abc import Sequence

from tfdist.control_groups import core_limit, free_memory, memory_limit, memory_of_host, text_of
from tfdist.launcher.ranks import cores


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
    return Facts(
        name=name,
        versions=versions,
        host=socket.gethostname(),
        place=" ".join(
            [socket.gethostname(), text_of("/proc/sys/kernel/random/boot_id"), _network()]
        ),
        cores=cores(),
        core_limit=core_limit(),
        memory_bytes=memory_of_host().get("MemTotal", 0),
        memory_limit_bytes=memory_limit(),
        available_bytes=free_memory() or 0,
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


def _network() -> str:
    """What tells networks of containers on one machine apart."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/net")
    return ""
