"""How well `tfdist plan` meets what `make bench` and `make bench-full` have measured: `bench-plan`.

Nothing is measured here. The results of benchmarks/side_by_side are predicted by the code of
tfdist/plan: from the traced model, the step that was measured on one device, and the rate of the
links. What an exchange costs the cores is fitted first, to two small configurations, which do not
count then.

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

import keras

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
# Those of one machine. `dense` and `target` ran on another one.
PLANS = ("models", "scaling", "quick", "compressed", "variables")
# Model, hosts and samples per rank: to these the constants are fitted.
FITTED = (("mlp", 2, 32), ("cnn", 2, 16))
# The machine has two cores, which share one processor: with more hosts some share a core.
CORES = 2
# The table of codecs is from both cores, and a host has one.
CODEC = 2.0
# In docs/compression.md, "links", 40 MB of gradients took 67 ms with fp16 and no limit, where the
# bytes and the codec explain 35 ms: 1.6 ns for each of 20 MB.
HALVES = 1.6e-9
GOAL_MEAN, GOAL_WORST = 0.10, 0.25


@dataclasses.dataclass(frozen=True)
class Measured:
    """A system on a link.

    Attributes:
        plan: the name of the results.
        work: the name of the model.
        hosts: the number of hosts.
        batch: samples per rank.
        strategy: the name of tfdist's backend.
        compression: the name of the compressor, or None.
        rate: the name of the link.
        seconds: the median of all steps.
        device: a step on one device.
    """

    plan: str
    work: str
    hosts: int
    batch: int
    strategy: str
    compression: str | None
    rate: str
    seconds: float
    device: Device

    @property
    def cell(self) -> tuple[str, int, int]:
        """What is fitted to, or not."""
        return self.work, self.hosts, self.batch


@dataclasses.dataclass(frozen=True)
class Constants:
    """What is fitted.

    Attributes:
        alpha: seconds of an empty message.
        horovod: as in `tfdist.plan.machine.Costs`.
        tensorflow: as there.
        residual: as there.
        early: as there, at most 1.
        slowdown: of a device while the other core computes too.
    """

    alpha: float = 1e-3
    horovod: float = 1.6e-9
    tensorflow: float = 2.2e-9
    residual: float = 5e-10
    early: float = 0.5
    slowdown: float = 1.4

    @property
    def are_possible(self) -> bool:
        """Whether they mean something."""
        return self.alpha <= 2e-3 and self.early <= 1 and self.slowdown >= 1


def measured() -> list[Measured]:
    """All results of tfdist."""
    return [row for plan in PLANS for row in _of_plan(plan)]


def _of_plan(plan: str) -> list[Measured]:
    runs = json.loads((RESULTS / f"side_by_side-{plan}.json").read_text())["runs"]
    found: dict[tuple, list[float]] = {}
    for run in runs:
        for phase in run.get("phases", ()):
            key = run["system"], run["work"], run["hosts"], run["batch"], phase["rate"]
            found.setdefault(key, []).extend(phase["seconds"])
    floors: dict[tuple[str, int], list[float]] = {}
    for (system, work, _, batch, _), seconds in found.items():
        if system == "keras":
            floors.setdefault((work, batch), []).extend(seconds)
    alone = {key: statistics.median(seconds) for key, seconds in floors.items()}
    rows = []
    for (system, work, hosts, batch, rate), seconds in found.items():
        name, _, rest = system.partition("-")
        strategy, _, compression = rest.partition("-")
        # Since these results half precision travels earlier, and in rows, and two ranks of Horovod
        # send rows at the same time.
        has_changed = compression == "fp16" or (strategy == "horovod" and work == "embedding")
        if name == "tfdist" and not has_changed:
            device = _device(alone, work, batch)
            row = plan, work, hosts, batch, strategy, compression or None, rate
            rows.append(Measured(*row, statistics.median(seconds), device))
    return rows


def _device(alone: dict[tuple[str, int], float], work: str, batch: int) -> Device:
    """A step on one device: as `tfdist plan` measures it, with a batch and with half of it."""
    whole = max(known for name, known in alone if name == work)
    step, half = alone[work, whole], alone.get((work, whole // 2))
    fixed = 0.0 if half is None else max(0.0, 2 * half - step)
    return Device(Device(step, whole, fixed).seconds(batch), batch)


@functools.cache
def _workload(work: str, batch: int) -> Workload:
    model = models_keras.build(work, keras)
    inputs = tracing.specs_of(model, batch)
    optimizer = models_keras.optimizer(work, keras)
    workload = tracing.trace(model, inputs, batch, optimizer)
    # The results are older than tables that travel instead of more bytes of rows.
    return dataclasses.replace(workload, rows_are_summed=False)


def predicted(row: Measured, constants: Constants) -> float:
    """The seconds of a step, by tfdist/plan."""
    rate = LINKS[row.rate].bytes_per_second
    link = Link(constants.alpha, 1 / (rate * PAYLOAD_SHARE))
    costs = Costs(
        constants.horovod,
        constants.tensorflow,
        HALVES,
        constants.residual,
        CODEC,
        constants.early,
        CPU_COSTS.update,
    )
    # Until the core with the fewest hosts is done, all cores are busy; then that of the others is.
    fewest, most = row.hosts // CORES, -(-row.hosts // CORES)
    slowdown = fewest * constants.slowdown + (most - fewest)
    workload = _workload(row.work, row.batch)
    found = models.Found(workload, row.device, costs, [])
    machines = Machines(link, costs=costs, slowdown=slowdown)
    planner = Planner(workload, found.messages, row.device, machines)
    return planner.predict(Candidate(row.strategy, row.compression), row.hosts).step


def fitted(rows: Sequence[Measured], constants: Constants) -> Constants:
    """The constants with the least mean error, one changed after the other, in smaller steps."""

    def error(tried: Constants) -> float:
        return statistics.mean(abs(math.log(predicted(row, tried) / row.seconds)) for row in rows)

    best, factor = error(constants), 1.5
    while factor > 1.01:
        before = best
        for field in dataclasses.fields(constants):
            for by in (factor, 1 / factor):
                value = getattr(constants, field.name) * by
                tried = dataclasses.replace(constants, **{field.name: value})
                if tried.are_possible and (found := error(tried)) < best - 1e-6:
                    best, constants = found, tried
        if best == before:
            factor = math.sqrt(factor)
    return constants


def repeated(rows: Iterable[Measured]) -> list[float]:
    """Ratios of the same configuration in two plans: what no prediction can be better than."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        key = *row.cell, row.strategy, row.compression, row.rate
        found.setdefault(key, []).append(row.seconds)
    return [max(times) / min(times) for times in found.values() if len(times) > 1]


@dataclasses.dataclass(frozen=True)
class Judged:
    """A prediction beside what was measured."""

    row: Measured
    seconds: float

    @property
    def error(self) -> float:
        """The part by which the prediction is off."""
        return abs(self.seconds / self.row.seconds - 1)


def judged() -> tuple[Constants, list[Judged]]:
    """The fitted constants, and all predictions that count."""
    rows = measured()
    constants = fitted([row for row in rows if row.cell in FITTED], Constants())
    return constants, [Judged(r, predicted(r, constants)) for r in rows if r.cell not in FITTED]


def summary(constants: Constants, found: list[Judged]) -> str:
    """What goes into the page."""
    errors = [one.error for one in found]
    twice = repeated(measured())
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
    fit = ", ".join(
        f"{field.name} {getattr(constants, field.name):.3g}"
        for field in dataclasses.fields(constants)
    )
    names = " and ".join(f"{WORKS[w].title} on {h} hosts, {b} samples" for w, h, b in FITTED)
    return "\n".join(
        [
            f"{len(found)} configurations: mean error {100 * statistics.mean(errors):.1f} % (goal "
            f"≤ {100 * GOAL_MEAN:.0f} %), median {100 * statistics.median(errors):.1f} %, worst "
            f"{100 * max(errors):.0f} % (goal ≤ {100 * GOAL_WORST:.0f} %; {close} of {len(found)} "
            f"are within). {len(twice)} configurations were measured in two plans: there the "
            f"slower median is {100 * (statistics.mean(twice) - 1):.0f} % above the faster one on "
            f"average, and {100 * (max(twice) - 1):.0f} % at worst. The table has mean errors in "
            f"percent. Fitted to {names}: {fit}. Made by `make bench-plan`.",
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
    head = ["model", "hosts", "samples per rank", "plan", "tfdist", "link", "measured, ms"]
    head += ["predicted, ms", "ratio"]
    key: Callable[[Judged], float] = lambda one: -one.error  # noqa: E731
    rows = [
        [
            WORKS[one.row.work].title,
            str(one.row.hosts),
            str(one.row.batch),
            one.row.plan,
            f"`{one.row.strategy}`{', ' if one.row.compression else ''}{one.row.compression or ''}",
            LINKS[one.row.rate].title,
            f"{1e3 * one.row.seconds:.0f}",
            f"{1e3 * one.seconds:.0f}",
            f"{one.seconds / one.row.seconds:.2f}",
        ]
        for one in sorted(found, key=key)
    ]
    return "\n".join(tables.table(head, rows, "tnnttt" + "n"))


def main() -> None:
    """Prints the tables; writes them with `--update`."""
    constants, found = judged()
    text, rows = summary(constants, found), every_row(found)
    print(text, rows, sep="\n\n")
    if "--update" in sys.argv:
        pages.update(PAGE, "plan-accuracy", text)
        ROWS.write_text(f"{rows}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
