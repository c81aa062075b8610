"""What is measured: the systems, which of them run with vectors of a size, and how often."""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import NamedTuple

from tests.traffic import network
from tfdist.options import DEFAULT_BUCKET_BYTES
from tfdist.plan.algorithms import ALGORITHMS
from tfdist.plan.alpha_beta import Link, seconds
from tfdist.plan.schedule import Schedule

MULTI_WORKER, HOROVOD_BACKEND = BACKENDS = ("multi_worker", "horovod")
# The peers, which are rings. The others are compared with the first one: what `multi_worker` does.
RING, ONE_MESSAGE, HOROVOD = "TensorFlow's ring", "TensorFlow's ring, in one message", "Horovod"
PEERS = (RING, ONE_MESSAGE, HOROVOD)
SYSTEMS = (*PEERS, *ALGORITHMS)


class LinkKind(NamedTuple):
    """How fast links are.

    Attributes:
        rate: as `tc` writes it; None where the ranks meet over loopback.
        burst: what passes at once after a pause, as `tc` writes it.
        title: in tables.
    """

    rate: str | None
    burst: str
    title: str


# With the usual burst a vector of 100 kB would not meet the limit of 100 Mbit/s at all. With less
# than 128 kB a link of 1 Gbit/s loses some of its rate on a busy machine.
LINKS = {
    "loopback": LinkKind(None, network.BURST, "loopback"),
    "1gbit": LinkKind("1gbit", "128kb", "1 Gbit/s"),
    "100mbit": LinkKind("100mbit", "16kb", "100 Mbit/s"),
}

# An algorithm is left out, or is not repeated, where it takes long and so many times as long as a
# ring.
HOPELESS = 1.5
# A ring that should take longer than this runs between 2, 4, 8, ... ranks only, and in one round.
SLOW_SECONDS = 5.0
# Shorter exchanges have two that do not count, longer ones only the one that also connects.
SHORT_SECONDS = 1.0
LEAST_ROUNDS = 3
# The vectors of all ranks may take this share of the machine's memory.
MEMORY_SHARE = 0.5
# What a rank has in any case: its vector, what it hands in, two copies of the sum, what to expect.
OWN_VECTORS = 5


def schedule_of(system: str, ranks: int) -> Schedule:
    """The schedule whose bytes and time a system should have."""
    return ALGORITHMS.get(system, ALGORITHMS["ring"])(ranks)


def seconds_of(system: str, ranks: int, size: int, link: Link) -> float:
    """What the model says of a system, with vectors of `size` bytes that travel as tfdist's do."""
    return seconds(schedule_of(system, ranks).cost(), size, link, DEFAULT_BUCKET_BYTES)


def systems_of(backend: str, algorithms: list[str]) -> list[str]:
    """The systems that run with a backend, the peers first."""
    return [HOROVOD] if backend == HOROVOD_BACKEND else [RING, ONE_MESSAGE, *algorithms]


def chosen(arguments: argparse.Namespace, ranks: int, size: int, link: Link | None) -> list[str]:
    """The systems that run with vectors of `size` bytes.

    Args:
        arguments: of the command line of `algorithms_ranks.py`.
        ranks: the number of ranks.
        size: in bytes.
        link: of all ranks; None if nobody has measured it.
    """
    names = systems_of(arguments.backend, arguments.algorithms)
    names = [name for name in names if name in PEERS or has_memory(name, ranks, size)]
    if link is None:
        return names
    ring = seconds_of(RING, ranks, size, link)
    if ring > SLOW_SECONDS and ranks & (ranks - 1):
        return []
    times = {name: seconds_of(name, ranks, size, link) for name in names}
    return repeated(times, ring, arguments.most_seconds)


def repeated(times: dict[str, float], ring: float, most_seconds: float) -> list[str]:
    """The systems that are worth their time: peers, and what is short or not far behind a ring.

    Args:
        times: the seconds of each system.
        ring: the seconds of a ring.
        most_seconds: what is short.
    """
    most = max(most_seconds, HOPELESS * ring)
    return [name for name in times if name in PEERS or times[name] <= most]


def rounds(all_seconds: float, ring: float, arguments: argparse.Namespace) -> int:
    """How often all systems run.

    Args:
        all_seconds: of one round of all systems.
        ring: the seconds of a ring.
        arguments: of the command line of `algorithms_ranks.py`.
    """
    if ring > SLOW_SECONDS:
        return 1
    fitting = int(arguments.size_seconds / max(all_seconds, 1e-9))
    return min(arguments.rounds, max(LEAST_ROUNDS, fitting))


def order(names: list[str], number: int) -> list[str]:
    """The order of the systems in a round, the same in all ranks.

    What ran before may leave something behind, such as a full queue. So each system has another
    place, and other neighbours, in each round.
    """
    shuffled = list(names)
    random.Random(number).shuffle(shuffled)
    return shuffled


def has_memory(algorithm: str, ranks: int, size: int) -> bool:
    """Whether the vectors of all ranks, on this machine, leave memory for the rest."""
    vectors = OWN_VECTORS + schedule_of(algorithm, ranks).received_at_once()
    return ranks * vectors * size <= MEMORY_SHARE * _machine_bytes()


def identifier(name: str) -> str:
    """The name of a system, as the name of a function."""
    return re.sub(r"\W+", "_", name)


def _machine_bytes() -> int:
    kilobytes = re.search(r"^MemTotal: *(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    assert kilobytes, "Linux tells its memory"
    return 1024 * int(kilobytes[1])
