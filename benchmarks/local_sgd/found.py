"""What all jobs have found, by system and link, and by task and choice."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.local_sgd import plan
from benchmarks.local_sgd.choices import SYNCHRONOUS


class Found:
    """What all jobs have found.

    Args:
        jobs: all jobs that are kept, each with what it has found.

    Attributes:
        versions: of the packages of all systems.
        parameters: of the model whose steps are timed; 0 if there was none.
    """

    def __init__(self, jobs: Iterable[tuple[list[Any], Any]]):
        self.versions: dict[str, str] = {}
        self.parameters = 0
        # By system and rate, or by task and choice; then by the number of the round or seed.
        self._steps: dict[tuple[str, str], dict[int, Any]] = collections.defaultdict(dict)
        self._losses: dict[tuple[str, str], dict[int, Any]] = collections.defaultdict(dict)
        for known, found in jobs:
            job = plan.Job(*known)
            if job.part == plan.LOSS:
                self._losses[job.task, job.system][job.number] = found
                continue
            self.versions |= found["versions"]
            self.parameters = found["parameters"]
            for rate, timed in found["rates"].items():
                self._steps[job.system, rate][job.number] = timed

    def rates(self) -> list[str]:
        """The rates that any system was timed at."""
        met = {rate for (_, rate), rounds in self._steps.items() if rounds}
        return [rate for rate in plan.LINKS if rate in met]

    def tasks(self) -> list[str]:
        """The tasks of which losses are known."""
        met = {task for (task, _), runs in self._losses.items() if runs}
        return [task for task in plan.TASKS if task in met]

    def seconds(self, system: str, rate: str) -> list[float]:
        """The mean step of each round."""
        return [timed["seconds"] for timed in self._steps[system, rate].values()]

    def step_bytes(self, system: str, rate: str) -> float:
        """The bytes that a host sends per step."""
        return statistics.mean(timed["bytes"] for timed in self._steps[system, rate].values())

    def ratios(self, system: str, other: str, rate: str) -> list[float]:
        """The step of a system by that of another one, for each round in which both ran."""
        ours, theirs = self._steps[system, rate], self._steps[other, rate]
        return [ours[n]["seconds"] / theirs[n]["seconds"] for n in ours if n in theirs]

    def added(self, system: str, rate: str) -> list[float]:
        """The seconds by which a step is longer than on one device of the same framework."""
        alone = plan.ALONE[plan.SYSTEMS[system].environment]
        ours, theirs = self._steps[system, rate], self._steps[alone, rate]
        return [ours[n]["seconds"] - theirs[n]["seconds"] for n in ours if n in theirs]

    def runs(self, task: str, choice: str) -> list[dict[str, Any]]:
        """What each seed has found."""
        return list(self._losses[task, choice].values())

    def sent(self, task: str, choice: str) -> float:
        """The bytes that a host has sent in a whole training, the mean over the seeds."""
        return statistics.mean(sum(run["bytes"]) for run in self.runs(task, choice))

    def loss_ratios(self, task: str, choice: str) -> list[float]:
        """The last loss by that of synchronous training, for each seed that has both."""
        ours, theirs = self._losses[task, choice], self._losses[task, SYNCHRONOUS]
        return [ours[n]["loss"][-1] / theirs[n]["loss"][-1] for n in ours if n in theirs]

    def fewer(self, task: str, choice: str) -> float | None:
        """How many times the bytes synchronous training sends; None where that is not known."""
        if not (self.runs(task, choice) and self.runs(task, SYNCHRONOUS)):
            return None
        return self.sent(task, SYNCHRONOUS) / self.sent(task, choice)
