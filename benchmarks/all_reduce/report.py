"""The tables of algorithms.py, from what its jobs have measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.all_reduce import model, plan
from benchmarks.common import machine, tables

# An algorithm wins where even the upper quartile of its ratios is below this.
WIN = 0.8
_UNITS = {1_000_000: "MB", 1_000: "kB", 1: "B"}


class Cell:
    """What was measured on one link with one number of ranks.

    Args:
        link: a key of `plan.LINKS`.
        ranks: the number of ranks.

    Attributes:
        links: what pings say about the link, of each block.
    """

    def __init__(self, link: str, ranks: int):
        self.link = link
        self.ranks = ranks
        self.links: list[model.Link] = []
        # By size and system: the seconds and bytes of each round, and the number of its block.
        self._rounds: dict[int, dict[str, list[tuple[int, float, int]]]] = {}

    def add(self, block: int, job: dict[str, Any]) -> None:
        """Adds what a job of a block has written."""
        if "link" in job:
            self.links.append(model.Link(job["link"]["alpha"], job["link"]["beta"]))
        for size, by_system in job["sizes"].items():
            of_size = self._rounds.setdefault(int(size), {})
            for name, found in by_system.items():
                rounds = zip(found["seconds"], found["sent"])
                of_size.setdefault(name, []).extend((block, *measured) for measured in rounds)

    @property
    def sizes(self) -> list[int]:
        """The sizes of the vectors, in bytes."""
        return sorted(self._rounds)

    def systems(self, size: int) -> list[str]:
        """The systems that have run with vectors of this size, the peers first."""
        known = (*plan.PEERS, *plan.ALGORITHMS)
        return [name for name in known if name in self._rounds[size]]

    def seconds(self, size: int, name: str) -> list[float]:
        """The seconds of all rounds."""
        return [seconds for _, seconds, _ in self._rounds[size][name]]

    def sent(self, size: int, name: str) -> float:
        """The bytes of a round, the median; 0 if they were not counted."""
        return statistics.median(sent for _, _, sent in self._rounds[size][name])

    def ratios(self, size: int, name: str) -> list[float]:
        """The seconds of each round, by those of TensorFlow's ring in the same round.

        Horovod, in a job of its own, is divided by the ring's median of the same block.
        """
        if plan.RING not in self._rounds[size]:
            return []
        own, ring = self._rounds[size][name], self._rounds[size][plan.RING]
        if name != plan.HOROVOD:
            return [ours / theirs for (_, ours, _), (_, theirs, _) in zip(own, ring)]
        of_block = {
            block: statistics.median(seconds for other, seconds, _ in ring if other == block)
            for block, _, _ in ring
        }
        return [seconds / of_block[block] for block, seconds, _ in own]

    def predicted(self, size: int, name: str) -> float | None:
        """The model's seconds, with the median of the blocks' links; None without any."""
        if not self.links:
            return None
        link = model.Link(
            statistics.median(link.alpha for link in self.links),
            statistics.median(link.beta for link in self.links),
        )
        return model.seconds(plan.schedule_of(name, self.ranks), size, link)

    def as_json(self) -> dict[str, Any]:
        """All measurements."""
        return {
            "link": self.link,
            "ranks": self.ranks,
            "pings": [{"alpha": link.alpha, "beta": link.beta} for link in self.links],
            "rounds": self._rounds,
        }


def winners(cell: Cell, size: int) -> list[str]:
    """The algorithms that are faster than TensorFlow's ring by more than noise, the best first."""
    medians = {}
    for name in cell.systems(size):
        ratios = cell.ratios(size, name)
        if name in plan.ALGORITHMS and ratios and _upper_quartile(ratios) < WIN:
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
        alphas = [1e3 * link.alpha for link in cell.links]
        rates = [1e-6 / link.beta for link in cell.links]
        row = [plan.LINKS[cell.link].title, str(cell.ranks)]
        row += [f"{statistics.median(found):.3g}" if found else "–" for found in (alphas, rates)]
        rows.append([*row, *(_best(cell, size) for size in sizes)])
    text = (
        "For each size of the vector the fastest algorithm, with its time by that of TensorFlow's "
        "ring, as `multi_worker` uses it: the median of the rounds' ratios (quartiles). Bold where "
        f"even the upper quartile is below {WIN:g}. α and β are fitted to pings. {blocks} blocks "
        f"of up to {rounds} rounds. {machine.measured_with('TensorFlow', 'Horovod')}. Made by "
        "`make benchmark-algorithms`."
    )
    return "\n".join([text, "", *tables.table(head, rows, "tnnnt")])


def all_rows(cells: Sequence[Cell]) -> str:
    """A row for each link, number of ranks, size and system, in Markdown."""
    head = ["link", "ranks", "vector", "algorithm", "sent by a rank, MB", "counted, MB"]
    head += ["messages", "ms (quartiles)", "model, ms", "by TensorFlow's ring"]
    rows = []
    for cell in cells:
        for size in cell.sizes:
            rows += [_row(cell, size, name) for name in cell.systems(size)]
    text = (
        "All that `make benchmark-algorithms` has measured. What is sent, and the messages of each "
        "piece of a vector, are those of the rank with the most; what was counted on its link has "
        "the headers too, and is not known over loopback. The peers' messages are their own; "
        f"their model is the ring's. {machine.measured_with('TensorFlow', 'Horovod')}."
    )
    return "\n".join([text, "", *tables.table(head, rows, "tnntn"), ""])


def size_text(size: int) -> str:
    """A number of bytes, in words."""
    unit = next(unit for unit in _UNITS if size >= unit)
    return f"{size / unit:g} {_UNITS[unit]}"


def _row(cell: Cell, size: int, name: str) -> list[str]:
    schedule = plan.schedule_of(name, cell.ranks)
    counted, predicted = cell.sent(size, name), cell.predicted(size, name)
    ratios = cell.ratios(size, name)
    return [
        plan.LINKS[cell.link].title,
        str(cell.ranks),
        size_text(size),
        f"`{name}`" if name in plan.ALGORITHMS else name,
        f"{schedule.sent() * size / 1e6:.4g}",
        f"{counted / 1e6:.4g}" if counted else "–",
        str(schedule.messages()) if name in plan.ALGORITHMS else "–",
        tables.with_quartiles([1e3 * seconds for seconds in cell.seconds(size, name)], ".3g"),
        "–" if predicted is None else f"{1e3 * predicted:.3g}",
        tables.with_quartiles(ratios, ".2f") if ratios else "–",
    ]


def _best(cell: Cell, size: int) -> str:
    """The fastest algorithm, and its ratio."""
    if size not in cell.sizes:
        return "–"
    found = {
        name: ratios
        for name in cell.systems(size)
        if name in plan.ALGORITHMS and (ratios := cell.ratios(size, name))
    }
    if not found:
        return "–"
    name = min(found, key=lambda name: statistics.median(found[name]))
    text = f"`{name}` {tables.with_quartiles(found[name], '.2f')}"
    return f"**{text}**" if name in winners(cell, size)[:1] else text


def _upper_quartile(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=4)[2] if len(values) > 1 else values[0]
