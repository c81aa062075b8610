"""What `tfdist test` finds, as data; needs no TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tfdist.checkup.machine import Facts
from tfdist.engines.clocks import Clock

PROBE_BYTES = 1_000_000
"""Links are compared by how long a message of so many bytes takes."""


@dataclasses.dataclass(frozen=True)
class Link:
    """What was measured between two ranks.

    Attributes:
        ranks: the two, the lower one first.
        between_hosts: whether the two are on different hosts.
        latency_seconds: how long both take to give each other 8 bytes, by the engine's operations:
            the shortest of many.
        usual_latency_seconds: the median of these.
        bandwidth_bytes_per_second: in one direction, while both send.
    """

    ranks: tuple[int, int]
    between_hosts: bool
    latency_seconds: float
    usual_latency_seconds: float
    bandwidth_bytes_per_second: float

    @property
    def seconds(self) -> float:
        """How long a message of `PROBE_BYTES` takes."""
        return self.latency_seconds + PROBE_BYTES / self.bandwidth_bytes_per_second


@dataclasses.dataclass(frozen=True)
class Sum:
    """How long an all-reduce takes.

    Attributes:
        bytes: what each rank sums.
        seconds: until the slowest rank has the sum.
        ring_seconds: what a ring takes if each of its links is as the slowest measured one.
    """

    bytes: int
    seconds: float
    ring_seconds: float


@dataclasses.dataclass(frozen=True)
class Equality:
    """How far training by all ranks is from training on one device.

    Attributes:
        feature: what was used in training.
        difference: the largest difference of a weight, on the worst rank; NaN counts as infinite.
        rank: the worst rank.
        tolerance: what is allowed.
    """

    feature: str
    difference: float
    rank: int
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the weights are equal within the tolerance."""
        return self.difference <= self.tolerance


@dataclasses.dataclass(frozen=True)
class Drill:
    """How an elastic job went on after the death of a rank.

    Attributes:
        seconds: how long the job took.
        difference: as for `Equality`; None if the job did not end well.
        tolerance: as for `Equality`.
        problem: why it did not end well; "" if it did.
    """

    seconds: float
    difference: float | None
    tolerance: float
    problem: str = ""


@dataclasses.dataclass
class Report:
    """What was found.

    Attributes:
        strategy: the strategy's name.
        ranks: of each rank, what it runs on.
        hosts: of each rank, the number of its host.
        clocks: of each rank, its clock; None where it was not measured.
        compute_seconds: of each rank, how long a fixed multiplication of matrices takes.
        links: the measured pairs of ranks.
        sums: all-reduces by size.
        equalities: by feature.
        drill: what `--faults` gave; None without.
        notes: what users should know although it is no problem.
        problems: what should be repaired, in one line each.
        seconds: how long all of it took.
    """

    strategy: str
    ranks: list[Facts]
    hosts: list[int]
    clocks: list[Clock | None] = dataclasses.field(default_factory=list)
    compute_seconds: list[float] = dataclasses.field(default_factory=list)
    links: list[Link] = dataclasses.field(default_factory=list)
    sums: list[Sum] = dataclasses.field(default_factory=list)
    equalities: list[Equality] = dataclasses.field(default_factory=list)
    drill: Drill | None = None
    notes: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def slowest(self) -> Link:
        """The slowest pair between hosts; between ranks if there is one host."""
        return slowest_of(self.links)

    def as_json(self) -> dict[str, Any]:
        """What `--json` writes: `tfdist plan --cluster` reads the first three and `machines`."""
        slowest = dataclasses.asdict(self.slowest)
        found = dataclasses.asdict(self)
        return {
            "ranks": len(self.ranks),
            "ranks_per_host": max(map(self.hosts.count, self.hosts)),
            "link": {
                name: slowest[name] for name in ("latency_seconds", "bandwidth_bytes_per_second")
            },
            "hosts": len(set(self.hosts)),
            "strategy": found["strategy"],
            "seconds": found["seconds"],
            "problems": found["problems"],
            "notes": found["notes"],
            "machines": [
                {"host_number": host, **facts} for host, facts in zip(self.hosts, found["ranks"])
            ],
            "clocks": found["clocks"],
            "compute_seconds": found["compute_seconds"],
            "links": found["links"],
            "all_reduce": found["sums"],
            "equality": found["equalities"],
            "faults": found["drill"],
        }


def slowest_of(links: Sequence[Link]) -> Link:
    """The slowest pair between hosts; between ranks if there is one host."""
    between = [link for link in links if link.between_hosts]
    return max(between or links, key=lambda link: link.seconds)
