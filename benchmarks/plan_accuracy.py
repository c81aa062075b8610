"""How well `tfdist plan` meets what is measured on 2 to 4 hosts: `bench-plan`.

Nothing is measured here. The code of tfdist/plan predicts the results of `python -m
benchmarks.side_by_side predicted`: from the traced model, the step that was measured on one device,
how much longer it takes while the other hosts' devices compute, and the rate of the links. What an
exchange costs the cores is fitted first, to five small configurations, which do not count then.
There are two sets of results, as on another day the machine was another one: `predicted-again` has
the small configurations of that machine too. Which costs there are was chosen after a look at all
results but those of UNSEEN, which were measured when that was fixed.

    python -m benchmarks.plan_accuracy --update
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import keras
import numpy as np
from scipy import optimize

from benchmarks import pages
from benchmarks.common import tables
from benchmarks.side_by_side import models_keras
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.work import WORKS
from tfdist.plan import models, tracing
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import CPU_COSTS, PAYLOAD_SHARE, Costs, Machines
from tfdist.plan.prediction import Candidate, Planner
from tfdist.plan.workload import Device, Workload

PAGE = pages.ROOT / "docs" / "planning.md"
RESULTS = pages.ROOT / "benchmarks" / "results"
ROWS = RESULTS / "plan.md"
MEASURED = RESULTS / "side_by_side-predicted.json"
AGAIN = RESULTS / "side_by_side-predicted-again.json"
# Model, hosts and samples per rank: to these the constants are fitted.
FITTED = (
    ("mlp", 2, 32),
    ("cnn", 2, 16),
    ("embedding", 2, 256),
    ("variables-1000", 2, 32),
    ("variables-1000", 3, 32),
)
# Nothing was chosen by these.
UNSEEN = (
    ("mlp", 3, 96),
    ("cnn", 4, 32),
    ("transformer", 2, 32),
    ("embedding", 4, 128),
    ("variables-10", 2, 64),
    ("variables-1000", 4, 64),
)
GOAL_MEAN, GOAL_WORST = 0.10, 0.25
# Seconds of an empty message, as `tfdist test` measures it between processes of this machine.
LATENCY = 1e-3
# Of the machine that is all hosts.
CORES = 2
ALONE, BESIDE = FLOORS = ("keras", "keras-beside")


@dataclasses.dataclass(frozen=True)
class Measured:
    """A system on a link.

    Attributes:
        work: the name of the model.
        hosts: the number of hosts.
        batch: samples per rank.
        strategy: the name of tfdist's backend.
        compression: the name of the compressor, or None.
        rate: the name of the link.
        rounds: the median step of each launch, in seconds.
        device: a step on one device.
        slowdown: for how many times as long it takes while all hosts' devices compute.
    """

    work: str
    hosts: int
    batch: int
    strategy: str
    compression: str | None
    rate: str
    rounds: tuple[float, ...]
    device: Device
    slowdown: float

    @property
    def cell(self) -> tuple[str, int, int]:
        """What is fitted to, or not."""
        return self.work, self.hosts, self.batch

    @property
    def seconds(self) -> float:
        """The median of all launches."""
        return statistics.median(self.rounds)


@dataclasses.dataclass(frozen=True)
class Constants:
    """What is fitted.

    Attributes:
        horovod: as in `tfdist.plan.machine.Costs`.
        tensorflow: as there.
        halves: as there.
        residual: as there.
        horovod_rows: as there.
        tensorflow_rows: as there.
        spread: as there.
        packing: as there.
        turn: as there.
    """

    horovod: float = 1e-9
    tensorflow: float = 1.5e-9
    halves: float = 1e-9
    residual: float = 5e-10
    horovod_rows: float = 5e-10
    tensorflow_rows: float = 5e-10
    spread: float = 0.08
    packing: float = 1e-5
    turn: float = 2e-3

    @property
    def costs(self) -> Costs:
        """What an exchange costs the cores."""
        return Costs(**dataclasses.asdict(self), update=CPU_COSTS.update)


def measured() -> list[Measured]:
    """The results of tfdist."""
    return _rows(_runs(MEASURED))


def measured_again() -> list[Measured]:
    """The results of tfdist on the other machine."""
    return _rows(_runs(AGAIN))


def _runs(path: Path) -> list[dict]:
    return json.loads(path.read_text())["runs"]


def _rows(runs: Iterable[dict]) -> list[Measured]:
    found: dict[tuple, list[float]] = {}
    for run in runs:
        cell = run["work"], run["hosts"], run["batch"]
        for phase in run.get("phases", ()):
            median = statistics.median(phase["seconds"])
            found.setdefault((run["system"], *cell, phase["rate"]), []).append(median)
    alone: dict[tuple[str, int], list[float]] = {}
    beside: dict[tuple[str, int, int], float] = {}
    for (system, work, hosts, batch, _), rounds in found.items():
        if system == ALONE:
            alone.setdefault((work, batch), []).extend(rounds)
        elif system == BESIDE:
            beside[work, hosts, batch] = statistics.median(rounds)
    steps = {key: statistics.median(rounds) for key, rounds in alone.items()}
    rows = []
    for (system, work, hosts, batch, rate), rounds in found.items():
        if system not in FLOORS:
            _, strategy, *coded = system.split("-")
            step = steps[work, batch]
            slowdown = max(1.0, beside[work, hosts, batch] / step)
            row = work, hosts, batch, strategy, coded[0] if coded else None, rate, tuple(rounds)
            rows.append(Measured(*row, Device(step, batch), slowdown))
    return rows


@functools.cache
def _workload(work: str, batch: int) -> Workload:
    model = models_keras.build(work, keras)
    inputs = tracing.specs_of(model, batch)
    optimizer = models_keras.optimizer(work, keras)
    return tracing.trace(model, inputs, batch, optimizer)


def predicted(row: Measured, costs: Costs) -> float:
    """The seconds of a step, by tfdist/plan."""
    rate = LINKS[row.rate].bytes_per_second
    link = Link(LATENCY, 1 / (rate * PAYLOAD_SHARE))
    workload = _workload(row.work, row.batch)
    found = models.Found(workload, row.device, costs, [])
    on_a_core = -(-row.hosts // CORES)
    machines = Machines(link, costs=costs, slowdown=row.slowdown, on_a_core=on_a_core)
    planner = Planner(workload, found.messages, row.device, machines)
    return planner.predict(Candidate(row.strategy, row.compression), row.hosts).step


def fitted(rows: Sequence[Measured], start: Constants) -> Constants:
    """The constants with the least errors, a loss that single large errors do not decide."""
    names = [field.name for field in dataclasses.fields(start)]
    first = np.log([getattr(start, name) for name in names])

    def constants(logarithms: np.ndarray) -> Constants:
        return Constants(**dict(zip(names, np.exp(logarithms).tolist())))

    def errors(logarithms: np.ndarray) -> list[float]:
        costs = constants(logarithms).costs
        return [math.log(predicted(row, costs) / row.seconds) for row in rows]

    # Differences over 2 % of the constants: what is predicted has corners.
    found = optimize.least_squares(
        errors, first, bounds=(first - 3, first + 3), loss="soft_l1", f_scale=0.05, diff_step=0.02
    )
    return constants(found.x)


def spread(rows: Iterable[Measured]) -> list[float]:
    """The slowest launch by the fastest: what no prediction can be better than."""
    return [max(row.rounds) / min(row.rounds) for row in rows if len(row.rounds) > 1]


@dataclasses.dataclass(frozen=True)
class Judged:
    """A prediction beside what was measured."""

    row: Measured
    seconds: float

    @property
    def error(self) -> float:
        """The part by which the prediction is off."""
        return abs(self.seconds / self.row.seconds - 1)


def judged(rows: Sequence[Measured]) -> tuple[Constants, list[Judged]]:
    """The constants that are fitted to the small configurations, and what they say of the others.

    Args:
        rows: the results of one machine.
    """
    constants = fitted([row for row in rows if row.cell in FITTED], Constants())
    others = [row for row in rows if row.cell not in FITTED]
    return constants, [Judged(row, predicted(row, constants.costs)) for row in others]


def summary(constants: Constants, found: list[Judged]) -> str:
    """What goes into the page."""
    fit = ", ".join(
        f"{field.name} {getattr(constants, field.name):.3g}"
        for field in dataclasses.fields(constants)
    )
    names = ", ".join(f"{WORKS[w].title} on {h} hosts, {b} samples" for w, h, b in FITTED)
    errors = [one.error for one in found]
    launches = spread(one.row for one in found)
    repeated = "One launch of each configuration."
    if launches:
        repeated = (
            f"Of {max(len(one.row.rounds) for one in found)} launches of a configuration the "
            f"slowest takes {100 * (statistics.mean(launches) - 1):.0f} % more than the fastest on "
            f"average, and {100 * (max(launches) - 1):.0f} % at most."
        )
    close = sum(error <= GOAL_WORST for error in errors)
    head = ["model", "hosts", "samples per rank", *(LINKS[rate].title for rate in _rates(found))]
    rows = []
    for cell in dict.fromkeys(one.row.cell for one in found):
        mine = [one for one in found if one.row.cell == cell]
        work, hosts, batch = cell
        rows.append(
            [WORKS[work].title, str(hosts), str(batch)]
            + [_mean(one for one in mine if one.row.rate == rate) for rate in _rates(found)]
        )
    rows.append(
        ["all", "", ""]
        + [_mean(one for one in found if one.row.rate == rate) for rate in _rates(found)]
    )
    return "\n".join(
        [
            f"{len(found)} configurations: mean error {100 * statistics.mean(errors):.1f} % (goal "
            f"≤ {100 * GOAL_MEAN:.0f} %), median {100 * statistics.median(errors):.1f} %, worst "
            f"{100 * max(errors):.0f} % (goal ≤ {100 * GOAL_WORST:.0f} %; {close} of {len(found)} "
            f"are within). {repeated} The table has mean errors in percent. Fitted to {names}: "
            f"{fit}. Made by `make bench-plan`.",
            "",
            *tables.table(head, rows, "tn"),
        ]
    )


def _rates(found: list[Judged]) -> list[str]:
    return [rate for rate in LINKS if any(one.row.rate == rate for one in found)]


def _mean(found: Iterable[Judged]) -> str:
    errors = [one.error for one in found]
    return f"{100 * statistics.mean(errors):.0f}" if errors else "–"


def every_row(found: list[Judged]) -> str:
    """All predictions, the worst first."""
    head = ["model", "hosts", "samples per rank", "tfdist", "link", "measured, ms"]
    head += ["predicted, ms", "ratio"]
    key: Callable[[Judged], float] = lambda one: -one.error  # noqa: E731
    rows = [
        [
            WORKS[one.row.work].title,
            str(one.row.hosts),
            str(one.row.batch),
            f"`{one.row.strategy}`{', ' if one.row.compression else ''}{one.row.compression or ''}",
            LINKS[one.row.rate].title,
            f"{1e3 * one.row.seconds:.0f}",
            f"{1e3 * one.seconds:.0f}",
            f"{one.seconds / one.row.seconds:.2f}",
        ]
        for one in sorted(found, key=key)
    ]
    return "\n".join(tables.table(head, rows, "tnntt" + "n"))


def sections() -> tuple[dict[str, str], str]:
    """What goes into the page, by the name of the place, and the text of all rows."""
    (constants, found), (of_other, again) = judged(measured()), judged(measured_again())
    unseen = [one for one in again if one.row.cell in UNSEEN]
    seen = [one for one in again if one.row.cell not in UNSEEN]
    texts = {
        "plan-accuracy": summary(constants, found),
        "plan-again": summary(of_other, seen),
        "plan-unseen": summary(of_other, unseen),
    }
    return texts, every_row(found + again)


def main() -> None:
    """Prints the tables; writes them with `--update`."""
    texts, rows = sections()
    print(*texts.values(), rows, sep="\n\n")
    if "--update" in sys.argv:
        for name, text in texts.items():
            pages.update(PAGE, name, text)
        ROWS.write_text(f"{rows}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
