"""The tables of algorithms.py, from what its jobs have measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from benchmarks.all_reduce import plan
from benchmarks.common import machine, tables
from tfdist.plan.alpha_beta import Link

# An algorithm wins where even the upper quartile of its ratios, of at least so many rounds, is
# below this.
WIN, WIN_ROUNDS = 0.8, 3
_UNITS = {1_000_000: "MB", 1_000: "kB", 1: "B"}


class Round(NamedTuple):
    """What one exchange took: the seconds of the slowest rank, and what the busiest one sent."""

    seconds: float
    sent: int


class Cell:
    """What was measured on one link with one number of ranks.

    Args:
        link: a key of `plan.LINKS`.
        ranks: the number of ranks.
    """

    def __init__(self, link: str, ranks: int):
        self.link = link
        self.ranks = ranks
        self._links: list[Link] = []
        # By size and system: the rounds, by the numbers of the block and of the round in it.
        self._rounds: dict[int, dict[str, dict[tuple[int, int], Round]]] = {}

    def add(self, block: int, job: dict[str, Any]) -> None:
        """Adds what a job of a block has written."""
        if "link" in job:
            self._links.append(Link(**job["link"]))
        for size, by_system in job["sizes"].items():
            of_size = self._rounds.setdefault(int(size), {})
            for name, found in by_system.items():
                rounds = of_size.setdefault(name, {})
                for number, measured in enumerate(zip(found["seconds"], found["sent"])):
                    rounds[block, number] = Round(*measured)

    @property
    def title(self) -> str:
        """The link and the number of ranks, in words."""
        return f"{plan.LINKS[self.link].title}, {self.ranks} ranks"

    @property
    def model_link(self) -> Link | None:
        """What pings say of the link, the median of all blocks; None before any."""
        if not self._links:
            return None
        return Link(
            statistics.median(link.alpha for link in self._links),
            statistics.median(link.beta for link in self._links),
        )

    @property
    def sizes(self) -> list[int]:
        """The sizes of the vectors, in bytes."""
        return sorted(self._rounds)

    def systems(self, size: int) -> list[str]:
        """The systems that have run with vectors of this size, the peers first."""
        return [name for name in plan.SYSTEMS if name in self._rounds.get(size, {})]

    def seconds(self, size: int, name: str) -> list[float]:
        """The seconds of all rounds."""
        return [found.seconds for found in self._rounds[size][name].values()]

    def sent(self, size: int, name: str) -> float:
        """The bytes of a round, the median; 0 if they were not counted."""
        return statistics.median(found.sent for found in self._rounds[size][name].values())

    def ratios(self, size: int, name: str) -> list[float]:
        """The seconds of each round, by those of TensorFlow's ring in the same round.

        Horovod, in a job of its own, is divided by the ring's median of the same block.
        """
        own, ring = (self._rounds[size].get(system, {}) for system in (name, plan.RING))
        if name != plan.HOROVOD:
            return [found.seconds / ring[at].seconds for at, found in own.items() if at in ring]
        of_block = {
            block: statistics.median(found.seconds for at, found in ring.items() if at[0] == block)
            for block, _ in ring
        }
        return [found.seconds / of_block[at[0]] for at, found in own.items() if at[0] in of_block]

    def predicted(self, size: int, name: str) -> float | None:
        """The model's seconds; None if the link is not known."""
        link = self.model_link
        return None if link is None else plan.seconds_of(name, self.ranks, size, link)


def winners(cell: Cell, size: int) -> list[str]:
    """The algorithms that are faster than TensorFlow's ring by more than noise, the best first."""
    medians = {}
    for name in cell.systems(size):
        ratios = cell.ratios(size, name)
        if name in plan.ALGORITHMS and len(ratios) >= WIN_ROUNDS:
            if statistics.quantiles(ratios, n=4)[2] < WIN:
                medians[name] = statistics.median(ratios)
    return sorted(medians, key=medians.__getitem__)


def summary(cells: Sequence[Cell], blocks: int, rounds: int) -> str:
    """The Markdown text between the page's markers: the best algorithm of each cell, and the links.

    Args:
        cells: what was measured.
        blocks: of each job.
        rounds: of each block, at most.
    """
    sizes = sorted({size for cell in cells for size in cell.sizes})
    head = ["link", "ranks", "α, ms", "1/β, MB/s", *map(size_text, sizes)]
    rows = []
    for cell in cells:
        link = cell.model_link
        row = [plan.LINKS[cell.link].title, str(cell.ranks)]
        row += [f"{1e3 * link.alpha:.3g}", f"{1e-6 / link.beta:.3g}"] if link else ["–", "–"]
        rows.append([*row, *(_best(cell, size) for size in sizes)])
    plural = "s" if blocks > 1 else ""
    text = (
        "For each size of the vector the fastest algorithm, with its time by that of TensorFlow's "
        "ring, as `multi_worker` uses it: the median of the rounds' ratios (quartiles). Bold where "
        f"even the upper quartile of at least {WIN_ROUNDS} rounds is below {WIN:g}. Where nothing "
        "ran, the time that the model gives a ring. α and β are fitted to pings. "
        f"{blocks} block{plural} of up to {rounds} rounds. "
        f"{machine.measured_with('TensorFlow', 'Horovod')}. Made by `make benchmark-algorithms`."
    )
    return "\n".join([text, "", *tables.table(head, rows, "tnnnt")])


def all_rows(cells: Sequence[Cell]) -> str:
    """A row for each link, number of ranks, size and system, in Markdown."""
    head = ["link", "ranks", "vector", "algorithm", "busiest link, MB", "counted, MB"]
    head += ["messages", "rounds", "ms (quartiles)", "model, ms", "by TensorFlow's ring"]
    rows = [
        _row(cell, size, name) for cell in cells for size in cell.sizes for name in plan.SYSTEMS
    ]
    text = (
        "All that `make benchmark-algorithms` has measured. The busiest link is that of the rank "
        "which sends or receives the most; what was counted is what a rank has sent at most, with "
        "all headers, and is not known over loopback. Messages are those of each piece of a "
        "vector, of the rank that sends the most. The milliseconds are the slowest rank's. What "
        "has a model only did not run: too slow, or too large for the memory. The peers' messages "
        "are their own; their model is the ring's. "
        f"{machine.measured_with('TensorFlow', 'Horovod')}."
    )
    return "\n".join([text, "", *tables.table(head, rows, "tnntn"), ""])


def progress(cell: Cell, found: dict[str, Any]) -> str:
    """What a job has found, in lines: milliseconds, and in brackets the model's."""
    lines = []
    for size, by_system in found["sizes"].items():
        parts = []
        for name, of_system in by_system.items():
            bound = cell.predicted(int(size), name)
            time = f"{name} {1e3 * statistics.median(of_system['seconds']):.3g}"
            parts.append(time if bound is None else f"{time} ({1e3 * bound:.3g})")
        lines.append(f"  {size_text(int(size))}, ms: {', '.join(parts) or 'left out'}")
    return "\n".join(lines)


def size_text(size: int) -> str:
    """A number of bytes, in words."""
    unit = next(unit for unit in _UNITS if size >= unit)
    return f"{size / unit:g} {_UNITS[unit]}"


def _row(cell: Cell, size: int, name: str) -> list[str]:
    schedule, predicted = plan.schedule_of(name, cell.ranks), cell.predicted(size, name)
    counted, count, time, ratio = "–", "0", "–", "–"
    if name in cell.systems(size):
        sent, ratios, seconds = (
            found(size, name) for found in (cell.sent, cell.ratios, cell.seconds)
        )
        counted, count = f"{sent / 1e6:.4g}" if sent else "–", str(len(seconds))
        time = tables.with_quartiles([1e3 * second for second in seconds], ".3g")
        ratio = tables.with_quartiles(ratios, ".2f") if ratios else "–"
    return [
        plan.LINKS[cell.link].title,
        str(cell.ranks),
        size_text(size),
        f"`{name}`" if name in plan.ALGORITHMS else name,
        f"{schedule.carried() * size / 1e6:.4g}",
        counted,
        str(schedule.messages()) if name in plan.ALGORITHMS else "–",
        count,
        time,
        "–" if predicted is None else f"{1e3 * predicted:.3g}",
        ratio,
    ]


def _best(cell: Cell, size: int) -> str:
    """The fastest algorithm, and its ratio."""
    found = {
        name: ratios
        for name in cell.systems(size)
        if name in plan.ALGORITHMS and (ratios := cell.ratios(size, name))
    }
    if not found:
        ring = cell.predicted(size, plan.RING)
        return "–" if ring is None or cell.systems(size) else f"≥ {ring:.3g} s"
    name = min(found, key=lambda name: statistics.median(found[name]))
    text = f"`{name}` {tables.with_quartiles(found[name], '.2f')}"
    return f"**{text}**" if name in winners(cell, size)[:1] else text
