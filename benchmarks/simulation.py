"""The simulation of tfdist/plan beside what was measured, and how long it takes itself.

Nothing is trained here. What was measured is in the tables of docs/asynchronous.md: three fast
workers and a slow one, all policies, two tasks. What the simulation is told is on that page too:
how long a step takes where as many workers share the machine and none is slow, and how many
gradients a second a chief uses that has eight workers without delays. Steps with parts and backups
are compared with the table of docs/parameter_server.md, of which two rows tell the simulation what
a step and a part take besides.

    python -m benchmarks.simulation --update      # some minutes
    python -m benchmarks.simulation --steps 10    # a look at whether it works
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import re
import time
from collections.abc import Callable

import numpy as np

from benchmarks import pages
from benchmarks.common import machine, options, tables
from tfdist.plan.simulation.compute_times import ComputeTimes, Times
from tfdist.plan.simulation.failures import Faults, elastic
from tfdist.plan.simulation.simulate import simulate
from tfdist.staleness import SSP, Bounded, InverseLR, Policies, Synchronous

PAGE = pages.ROOT / "docs" / "scaling.md"
MEASURED = pages.ROOT / "docs" / "asynchronous.md"
# By their names in the tables.
POLICIES = {
    "none": Policies(),
    "InverseLR()": InverseLR(),
    "Bounded(8)": Bounded(8),
    'Bounded(8, "wait")': Bounded(8, "wait"),
    "SSP(10)": SSP(10),
    "SSP(3)": SSP(3),
    "synchronous": Synchronous(),
    "synchronous, multi_worker": Synchronous(),
}
# By their names in the table of docs/parameter_server.md.
WHOLE, BOTH = Synchronous(), Synchronous(parts_per_worker=2, backup=True)
IN_PARTS = {
    repr(policy): policy
    for policy in (WHOLE, Synchronous(parts_per_worker=2), Synchronous(backup=True), BOTH)
}
STEPS = 45
# Elastic jobs whose workers die so often; the others go on after 10 s, and a new one comes later.
FAULTS = {
    "elastic, each worker dies once in 30 days": Faults(30 * 86_400.0, 10.0, 300.0),
    "elastic, each worker dies once a day": Faults(86_400.0, 10.0, 300.0),
}
_IN_PARTS = re.compile(
    r"(\d+) workers, of which one takes ([\d.]+) times as long for a sample; batches of (\d+), "
    r"([\d.]+) ms for a sample"
)
_DELAYS = re.compile(r"(\d+) workers, .*? of ([\d.]+) ms and one of ([\d.]+) ms\. ")
_TOGETHER = re.compile(r"Together, .*? in gradients/s: (.*)\.$", re.M)


@dataclasses.dataclass(frozen=True)
class Measured:
    """A policy on a task, by docs/asynchronous.md.

    Attributes:
        task: the name of the task.
        policy: a key of `POLICIES`.
        rate: gradients per second.
        batches: the batches of a run.
        seconds: of a step of each worker.
        chief: seconds of the chief for each gradient.
    """

    task: str
    policy: str
    rate: float
    batches: int
    seconds: tuple[float, ...]
    chief: float

    @property
    def simulated(self) -> float:
        """The gradients per second by the simulation, from the first update to the last."""
        policy = POLICIES[self.policy]
        computing = np.tile(np.array(self.seconds) - self.chief, (10 * self.batches, 1))
        if policy.synchronous:
            run = simulate(computing, policy, exchange=self.chief)
            count = self.batches * len(self.seconds)
        else:
            run = simulate(computing, policy, update=self.chief)
            count = round(self.batches * len(run.times) / (len(run.times) + run.dropped))
        used = run.times[:count]
        return float(np.sum(used > used[0]) / (used[-1] - used[0]))

    @property
    def error(self) -> float:
        """By which part the simulation is faster than what was measured."""
        return self.simulated / self.rate - 1


def measured() -> list[Measured]:
    """All rows of the page."""
    text = MEASURED.read_text(encoding="utf-8")
    found = []
    for part in text.split("**Stragglers, ")[1:]:
        part = part.partition("**Divergence")[0]
        task = part.partition(".")[0]
        (rate,) = re.findall(rf"^\| {task} \| [\d.]+ \| 8 \| none \|[^|]*\| (\d+) \|", text, re.M)
        lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line[:1] == "|"]
        for cells in lines:
            if cells[0] in POLICIES:
                row = dict(zip(lines[0], cells))
                batches = int(row["batches"])
                told = _seconds(part, cells[0]), 1 / float(rate)
                found.append(Measured(task, cells[0], float(row["gradients/s"]), batches, *told))
    return found


def _seconds(part: str, policy: str) -> tuple[float, ...]:
    """How long a step of each worker takes.

    Args:
        part: what the page has of a task.
        policy: decides what a step takes besides its delay, in the company of the other workers.
    """
    heading, together = _DELAYS.search(part), _TOGETHER.search(part)
    assert heading is not None and together is not None
    workers, fast, slow = map(float, heading.groups())
    rates = dict(re.findall(r"(\w.*?) ([\d.]+)(?:; |$)", together[1]))
    besides = workers / float(rates.get(policy, rates["none"])) - fast / 1000
    return *[fast / 1000 + besides] * (int(workers) - 1), slow / 1000 + besides


def compared() -> str:
    """The simulation beside what was measured, in Markdown."""
    head = ["task", "policy", "measured, gradients/s", "simulated", "simulated by measured"]
    rows = [
        [m.task, m.policy, f"{m.rate:.1f}", f"{m.simulated:.1f}", f"{1 + m.error:.2f}"]
        for m in measured()
    ]
    return "\n".join(tables.table(head, rows, "ttn"))


@dataclasses.dataclass(frozen=True)
class InParts:
    """A policy of synchronous steps on a parameter server.

    Attributes:
        policy: a key of `IN_PARTS`.
        step: milliseconds of a step, by docs/parameter_server.md.
        in_vain: parts that were computed in vain in a step, by this page.
        simulated: milliseconds of a step by the simulation.
        simulated_in_vain: parts in vain by the simulation.
    """

    policy: str
    step: float
    in_vain: float
    simulated: float
    simulated_in_vain: float


def in_parts() -> list[InParts]:
    """The rows of docs/parameter_server.md in which all parts are used."""
    text = pages.PARAMETER_SERVER_PAGE.read_text(encoding="utf-8")
    heading = _IN_PARTS.search(text)
    assert heading is not None
    workers, slower, batch, of_sample = (float(number) for number in heading.groups())
    fast = of_sample * batch / workers
    rows = re.findall(r"^\| `(Sync.*?)` \| (\d+) [^|]*\| [\d.]+ \| ([\d.]+) \|", text, re.M)
    measured = {policy: (float(step), float(in_vain)) for policy, step, in_vain in rows}
    # One row waits for a part of the slow worker, the other one for three of half a size.
    besides = measured[repr(WHOLE)][0] - slower * fast
    part = (measured[repr(BOTH)][0] - 3 * fast / 2 - besides) / 2
    times = np.tile([fast] * (int(workers) - 1) + [slower * fast], (STEPS, 1))
    found = []
    for name, policy in IN_PARTS.items():
        run = simulate(times, policy, exchange=besides - part, part=part)
        step = float(np.median(np.diff(np.unique(run.times))))
        found.append(InParts(name, *measured[name], step, run.dropped / STEPS))
    return found


def compared_in_parts() -> str:
    """The simulated steps with parts and backups beside the measured ones, in Markdown."""
    head = ["policy", "measured, ms", "simulated", "simulated by measured"]
    head += ["parts in vain, measured", "simulated"]
    rows = []
    for row in in_parts():
        cells = [f"`{row.policy}`", f"{row.step:.0f}", f"{row.simulated:.0f}"]
        cells.append(f"{row.simulated / row.step:.2f}")
        rows.append([*cells, f"{row.in_vain:.2f}", f"{row.simulated_in_vain:.2f}"])
    return "\n".join(tables.table(head, rows))


def durations(workers: int, steps: int) -> str:
    """How long the simulation takes, in Markdown."""
    times = ComputeTimes(workers, spread=0.2, stall_share=0.01, stall_factor=5.0).draw(
        np.random.default_rng(0), steps
    )
    policies = {**POLICIES, "synchronous, backup": Synchronous(backup=True)}
    del policies["synchronous, multi_worker"]
    rows = [
        _timed(name, functools.partial(_gradients, times, policy))
        for name, policy in policies.items()
    ]
    rows += [_timed(name, functools.partial(_survived, times, f)) for name, f in FAULTS.items()]
    text = (
        f"{workers:,} workers with {steps:,} steps each, until the first of them has no more: "
        "gradients, and seconds of one core. In elastic jobs the others go on 10 s after a death, "
        "and another worker comes after 300 s; the gradients are those that counted. "
        f"{machine.measured_with()}. Made by `python -m benchmarks.simulation --update`."
    )
    return "\n".join([*tables.table(["policy", "gradients", "seconds"], rows), "", text])


def _timed(name: str, run: Callable[[], str]) -> list[str]:
    """The cells of what `run` simulates: it returns what it has counted."""
    begun = time.process_time()
    counted = run()
    return [name, counted, f"{time.process_time() - begun:.1f}"]


def _gradients(times: Times, policy: Policies) -> str:
    run = simulate(times, policy)
    return f"{len(run.times) + run.dropped:,}"


def _survived(times: Times, faults: Faults) -> str:
    survived = elastic(times, faults, np.random.default_rng(0))
    return f"{survived.worker_steps:,}; {survived.failures:,} deaths"


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--update", action="store_true", help="put the tables into the page")
    return parser.parse_args()


def main() -> None:
    """Prints the tables, and writes them where the command line wants it."""
    arguments = parse_arguments()
    for name, text in (
        ("simulated", compared()),
        ("simulated-parts", compared_in_parts()),
        ("simulation-times", durations(arguments.workers, arguments.steps)),
    ):
        print(text, "\n", flush=True)
        if arguments.update:
            pages.update(PAGE, name, text)


if __name__ == "__main__":
    main()
