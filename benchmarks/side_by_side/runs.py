"""The runs of one model on one number of hosts, and what follows from these runs."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.systems import SYSTEMS

# Losses are averaged over so many steps, because batches differ.
SMOOTHING = 10

Run = dict[str, Any]


class Group:
    """The runs of all systems, with one model on one number of hosts.

    Args:
        runs: at least one run.
    """

    def __init__(self, runs: list[Run]):
        self._runs = [run for run in runs if "error" not in run]
        first = runs[0]
        self.work: str = first["work"]
        self.hosts: int = first["hosts"]
        self.batch: int = first["batch"]
        self.loopback: str = first["loopback"]
        self.rounds = 1 + max(run["round"] for run in runs)
        present = {run["system"] for run in runs}
        self.systems = [name for name in SYSTEMS if name in present]
        self.errors = {run["system"]: run["error"] for run in runs if "error" in run}
        # On one host there is no link.
        met = {
            p["rate"] for r in self._runs for p in r["phases"] if not SYSTEMS[r["system"]].single
        }
        self.rates = [rate for rate in LINKS if rate in met]
        self.limited = [rate for rate in self.rates if LINKS[rate][0] < float("inf")]
        self.parameters: int = self._runs[0]["parameters"] if self._runs else 0

    def _phases(self, name: str, rate: str | None, number: int | None = None) -> list[Run]:
        return [
            phase
            for run in self._runs
            if run["system"] == name and number in (None, run["round"])
            for phase in run["phases"]
            if rate in (None, phase["rate"])
        ]

    def seconds(self, name: str, rate: str | None, number: int | None = None) -> list[float]:
        """The seconds of a system's steps, by rate and round; None for all rates or rounds."""
        return [value for phase in self._phases(name, rate, number) for value in phase["seconds"]]

    def sent(self, name: str, rate: str) -> list[float]:
        """The bytes sent per step and rank; none where they are not kept."""
        return [phase["bytes"] for phase in self._phases(name, rate) if "bytes" in phase]

    def rounds_of(self, name: str) -> int:
        """The number of rounds in which a system ran."""
        return len({run["round"] for run in self._runs if run["system"] == name})

    def links(self, rate: str) -> list[float]:
        """The measured speeds of the links, in bytes per second."""
        phases = itertools.chain.from_iterable(self._phases(name, rate) for name in self.systems)
        return [value for phase in phases for value in phase.get("links", ())]

    def peaks(self, name: str) -> list[int]:
        """Peak memory of each run."""
        return [run["peak_bytes"] for run in self._runs if run["system"] == name]

    def ring_share(self, name: str, rate: str) -> float | None:
        """The bound of a dense exchange in a ring, divided by what the exchange adds to a step.

        None if less than the dense gradients travels, if the step on one device was not measured,
        or if that step takes longer.
        """
        size = 4 * self.parameters
        bound = 2 * (self.hosts - 1) / self.hosts * size
        floor = SYSTEMS[name].floor
        computing = [0.0] if floor is None else self.seconds(floor, None)
        if statistics.median(self.sent(name, rate)) < 0.9 * bound or not computing:
            return None
        alone = statistics.median(computing)
        added = statistics.median(self.seconds(name, rate)) - alone
        return bound / LINKS[rate][0] / added if added > 0 else None

    def ratio(self, ours: str, theirs: str, rate: str) -> list[float]:
        """Our step time divided by theirs, for each round in which both ran."""
        ratios = []
        for number in range(self.rounds):
            own, peer = self.seconds(ours, rate, number), self.seconds(theirs, rate, number)
            if own and peer:
                ratios.append(statistics.median(own) / statistics.median(peer))
        return ratios

    def steps_to(self, name: str, target: float) -> int | None:
        """The number of steps after which the loss is at the target; None if it never is."""
        losses = next(run["losses"] for run in self._runs if run["system"] == name)
        for end in range(SMOOTHING, len(losses) + 1):
            if statistics.mean(losses[end - SMOOTHING : end]) <= target:
                return end
        return None


def groups(runs: list[Run]) -> list[Group]:
    """The runs by model, hosts and batch."""
    keys = dict.fromkeys((run["work"], run["hosts"], run["batch"]) for run in runs)
    return [
        Group([run for run in runs if (run["work"], run["hosts"], run["batch"]) == key])
        for key in keys
    ]
