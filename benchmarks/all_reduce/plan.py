"""What is measured: the systems, and which of them run with vectors of a size."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from benchmarks.all_reduce import model
from benchmarks.all_reduce.algorithms import ALGORITHMS
from benchmarks.all_reduce.schedule import Schedule

MULTI_WORKER, HOROVOD_BACKEND = BACKENDS = ("multi_worker", "horovod")
# The peers, which are rings. The others are compared with the first one: what `multi_worker` does.
RING, ONE_MESSAGE, HOROVOD = "TensorFlow's ring", "TensorFlow's ring, in one message", "Horovod"
PEERS = (RING, ONE_MESSAGE, HOROVOD)
PING_SIZES = (model.EMPTY, *model.LONG)


class LinkKind(NamedTuple):
    """How fast links are.

    Attributes:
        rate: as `tc` writes it; None where the ranks meet over loopback.
        title: in tables.
    """

    rate: str | None
    title: str


LINKS = {
    "loopback": LinkKind(None, "loopback"),
    "1gbit": LinkKind("1gbit", "1 Gbit/s"),
    "100mbit": LinkKind("100mbit", "100 Mbit/s"),
}

# The least number of rounds, and the seconds that the rounds of a size should take at most.
LEAST_ROUNDS, SIZE_SECONDS = 3, 60.0
# The vectors of all ranks may take this share of the machine's memory.
MEMORY_SHARE = 0.4


def schedule_of(system: str, ranks: int) -> Schedule:
    """The schedule whose bytes and time a system should have."""
    return ALGORITHMS.get(system, ALGORITHMS["ring"])(ranks)


def systems_of(backend: str, algorithms: list[str]) -> list[str]:
    """The systems that run with a backend, the peers first."""
    return [HOROVOD] if backend == HOROVOD_BACKEND else [RING, ONE_MESSAGE, *algorithms]


def runs(
    arguments: argparse.Namespace, ranks: int, size: int, link: model.Link | None
) -> tuple[list[str], int]:
    """The systems that run with vectors of `size` bytes, and in how many rounds.

    Args:
        arguments: of the command line of `algorithms_ranks.py`.
        ranks: the number of ranks.
        size: in bytes.
        link: what the ranks have measured; None if they cannot.
    """
    names = systems_of(arguments.backend, arguments.algorithms)
    names = [name for name in names if name in PEERS or has_memory(name, ranks, size)]
    if link is None:
        return names, arguments.rounds
    times = {name: model.seconds(schedule_of(name, ranks), size, link) for name in names}
    names = [name for name in names if name in PEERS or times[name] <= arguments.most_seconds]
    round_seconds = sum(times[name] for name in names)
    fitting = int(SIZE_SECONDS / max(round_seconds, 1e-9))
    return names, min(arguments.rounds, max(LEAST_ROUNDS, fitting))


def has_memory(algorithm: str, ranks: int, size: int) -> bool:
    """Whether the vectors of all ranks, on this machine, leave memory for the rest."""
    # A rank has its vector, what it hands in, the sum, and what arrives.
    vectors = 3 + schedule_of(algorithm, ranks).received_at_once()
    return ranks * vectors * size <= MEMORY_SHARE * _machine_bytes()


def identifier(name: str) -> str:
    """The name of a system, as the name of a function."""
    return re.sub(r"\W+", "_", name)


def _machine_bytes() -> int:
    kilobytes = re.search(r"^MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    assert kilobytes, "Linux tells its memory"
    return 1024 * int(kilobytes[1])
