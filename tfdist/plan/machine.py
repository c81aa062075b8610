"""The machines that would train: their links, and what an exchange costs their cores."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from tfdist.arguments import shown
from tfdist.plan.alpha_beta import Link

# Between ranks of one host, over loopback: docs/performance.md, "The exchange alone": 100 MB in 85
# to 120 ms between two processes, where a ring carries 100 MB.
INSIDE = Link(5e-5, 1e-9)
# The part of a link's rate that carries gradients: the rest are headers of TCP and Ethernet
# (1448 bytes of 1538 in each frame).
PAYLOAD_SHARE = 1448 / 1538
_MOST_RANKS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Costs:
    """What an exchange costs the cores that compute.

    Attributes:
        horovod: seconds for each byte that Horovod exchanges.
        tensorflow: seconds for each byte that TensorFlow's collectives exchange.
        halves: seconds for each byte in half precision that a rank converts to add it up.
        residual: seconds of error feedback for each byte of gradients.
        codec: by how much encoding and decoding take longer than in the table of `codecs.py`.
        early: the part of the backward pass by which gradients are as early as in the trace; 0 if
            all leave at its end.
        update: seconds of the optimizer for each byte of trained weights.
        horovod_rows: seconds to add up each byte of the rows of sparse gradients that a rank gets
            with Horovod.
        tensorflow_rows: the same with TensorFlow's collectives.
        spread: by how many seconds steps of a rank differ, as a standard deviation, by the square
            root of their own seconds.
        packing: seconds to put a tensor into a bucket and to take it out again, where TensorFlow
            does that. Horovod does it in threads of its own.
        turn: seconds for which an operation of Horovod that is not fused with others waits for each
            other rank that shares its core.
    """

    horovod: float = 0.0
    tensorflow: float = 0.0
    halves: float = 0.0
    residual: float = 0.0
    codec: float = 1.0
    early: float = 1.0
    update: float = 0.0
    horovod_rows: float = 0.0
    tensorflow_rows: float = 0.0
    spread: float = 0.0
    packing: float = 0.0
    turn: float = 0.0

    def per_byte(self, strategy: str, slowdown: float) -> float:
        """Seconds of the cores for each byte that the strategy exchanges.

        Horovod's threads mostly wait, also for each other. So they take no longer where ranks share
        cores.
        """
        return self.horovod if strategy == "horovod" else slowdown * self.tensorflow

    def per_byte_of_rows(self, strategy: str) -> float:
        """Seconds of the cores for each byte of rows that a rank gets."""
        return self.horovod_rows if strategy == "horovod" else self.tensorflow_rows

    def per_tensor(self, strategy: str) -> float:
        """Seconds of the cores for each tensor of a bucket that the strategy exchanges."""
        return 0.0 if strategy == "horovod" else self.packing

    def latest(self, seconds: float, ranks: int) -> float:
        """By how many seconds the slowest of so many ranks is slower than one rank is on average.

        Delays in a step are many, small and independent. So steps have a normal distribution, whose
        variance grows with their time. The largest of n such values is where Blom puts it
        ("Statistical Estimates and Transformed Beta-Variables", 1958).

        Args:
            seconds: that a step of a rank takes on average.
            ranks: the number of ranks.

        Example:

        >>> from tfdist.plan.machine import Costs
        >>> Costs(spread=0.1).latest(0.25, 1), round(Costs(spread=0.1).latest(0.25, 4), 3)
        (0.0, 0.052)
        """
        place = statistics.NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25))
        return self.spread * math.sqrt(seconds) * place


# Assumed, as there was no GPU to measure with: a memory of 1 TB/s, which is 20 times what the cores
# of the table of codecs have; an update moves five bytes for each byte of weights.
GPU_COSTS = Costs(codec=0.05, update=5e-12)
# Fitted by `make bench-plan` to five small configurations, where a host is one core. The table of
# codecs is from two cores, as it is here. The update is what the steps on one device there do not
# gain from smaller batches: an MLP of 40 MB, SGD with momentum.
CPU_COSTS = Costs(
    horovod=9.28e-10,
    tensorflow=1.39e-9,
    halves=6.87e-10,
    residual=4.1e-10,
    update=6e-10,
    horovod_rows=1.36e-9,
    tensorflow_rows=4.0e-10,
    spread=0.081,
    packing=9.47e-6,
    turn=7.51e-3,
)
COSTS = {"cpu": CPU_COSTS, "gpu": GPU_COSTS}


@dataclasses.dataclass(frozen=True)
class Machines:
    """What ranks run on, and how they are linked.

    Attributes:
        link: of a host; `beta` for the bytes of gradients.
        per_host: the ranks of each host, at most.
        inside: the link between two ranks of one host.
        costs: of the cores that compute, or of the GPU.
        slowdown: for how many times as long a device computes as alone, where devices share cores.
        shares_cores: whether the workers of a host share the cores of one device. Then each takes
            as many times as long as there are on its host.
        on_a_core: how many ranks share a core, where hosts do: `slowdown` is what comes of that.
    """

    link: Link
    per_host: int = 1
    inside: Link = INSIDE
    costs: Costs = CPU_COSTS
    slowdown: float = 1.0
    shares_cores: bool = False
    on_a_core: int = 1

    def hosts(self, ranks: int) -> int:
        """On how many hosts so many ranks are."""
        return -(-ranks // self.per_host)

    def slowdown_of(self, ranks: int) -> float:
        """For how many times as long each of so many ranks computes as a device alone."""
        return self.slowdown * (min(self.per_host, ranks) if self.shares_cores else 1)

    def between(self, ranks: int) -> Link:
        """The slowest link that a ring of so many ranks uses."""
        return self.inside if self.hosts(ranks) == 1 else self.link


def link_of(bandwidth: float, latency: float) -> Link:
    """The link of hosts.

    Args:
        bandwidth: the rate of the link in bytes per second, headers included.
        latency: seconds of an empty message.
    """
    return Link(latency, 1 / (bandwidth * PAYLOAD_SHARE))


@dataclasses.dataclass(frozen=True)
class Cluster:
    """What `tfdist test --json` has measured.

    Attributes:
        ranks: the number of ranks.
        per_host: the ranks of each host.
        link: between hosts, or between ranks if there is one host; for the bytes of messages.
        device_step: seconds of a step on one device; None if it was not measured.
        device: "gpu" if a rank sees one, "cpu" if none does; None if the file does not say it.
    """

    ranks: int
    per_host: int
    link: Link
    device_step: float | None = None
    device: str | None = None

    @property
    def is_one_host(self) -> bool:
        """Whether the link is that between ranks of one host."""
        return self.ranks <= self.per_host


def read_cluster(path: str | Path) -> Cluster:
    """Reads what `tfdist test --json` has written.

    Args:
        path: of a JSON file with `ranks`, `ranks_per_host` and `link`, which has `latency_seconds`
            and `bandwidth_bytes_per_second`; if they are there, `device_step`, in seconds, and
            `machines`, with the `gpus` of each rank. All else is ignored.

    Raises:
        ValueError: when the file cannot be read, or one of these is missing or no such number.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"The file of the cluster must be JSON, as `tfdist test --json` writes it: {error}. "
            f"Received: {str(path)!r}"
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("link"), dict):
        raise ValueError(f"{_NEEDED} Received: no `link` in {str(path)!r}")
    latency = _number(found["link"], "latency_seconds", path)
    bandwidth = _number(found["link"], "bandwidth_bytes_per_second", path)
    ranks = _number(found, "ranks", path, 1, _MOST_RANKS)
    per_host = _number(found, "ranks_per_host", path, 1, _MOST_RANKS)
    step = _number(found, "device_step", path) if found.get("device_step") else None
    link = Link(latency, 1 / bandwidth)
    return Cluster(round(ranks), round(per_host), link, step, _device(found.get("machines")))


def _device(machines: object) -> str | None:
    """What ranks train on; None if their `machines` do not say it."""
    if not isinstance(machines, list) or not machines:
        return None
    known = [machine.get("gpus") for machine in machines if isinstance(machine, dict)]
    if any(known):
        return "gpu"
    return "cpu" if len(known) == len(machines) and None not in known else None


_NEEDED = (
    "The file of the cluster must have `ranks`, `ranks_per_host` and `link` with `latency_seconds` "
    "and `bandwidth_bytes_per_second`, numbers greater than 0, and at most a million ranks, as "
    "`tfdist test --json` writes them."
)


def _number(
    found: Mapping[str, object],
    name: str,
    path: str | Path,
    least: float = 1e-18,
    most: float = 1e18,
) -> float:
    value = found.get(name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:  # type: ignore[operator]
        raise ValueError(f"{_NEEDED} Received: {name}={shown(value)} in {str(path)!r}")
    return float(value)  # type: ignore[arg-type]
