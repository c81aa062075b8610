"""How far training scales, predicted up to 10,000 workers: `make scaling-chart`.

Nothing is measured. The step of one device is given; the exchange is that of `tfdist plan`; the
waiting for the slowest worker is simulated (`tfdist/plan/simulation`).

    python -m benchmarks.scaling_chart --update --plot
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

import keras
import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks import pages
from benchmarks.common import options, tables
from benchmarks.side_by_side import models_keras
from tfdist.local.choices import DiLoCo
from tfdist.plan import models, tracing
from tfdist.plan.alpha_beta import Link
from tfdist.plan.machine import GPU_COSTS, Machines, link_of
from tfdist.plan.prediction import Candidate, Planner
from tfdist.plan.simulation import runs
from tfdist.plan.simulation.compute_times import ComputeTimes
from tfdist.plan.simulation.failures import Faults, elastic
from tfdist.plan.workload import Device

matplotlib.use("Agg")
PAGE = pages.ROOT / "docs" / "scaling.md"
CHART = pages.ROOT / "docs" / "images" / "scaling.png"

WORKERS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000]
LATENCY = 2e-5
LINKS = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 1.25e10}
# Steps of different workers differ by so much, as a standard deviation.
SPREAD = 0.05
STEPS = 200
# A worker dies once in 30 days; the others go on after 10 s, and a new one comes after 5 minutes.
FAULTS = Faults(mtbf=30 * 86400.0, recovery=10.0, absence=300.0)
KNEE = 0.5


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        title: in the chart.
        work: the model, of benchmarks/side_by_side.
        batch: samples of a step.
        seconds: of this step on one device.
        fixed: the seconds of these that do not depend on the batch.
    """

    title: str
    work: str
    batch: int
    seconds: float
    fixed: float


TASKS = (
    Task("MLP, 10 million parameters", "mlp", 4096, 0.06, 0.005),
    Task("Transformer, 3.2 million parameters", "transformer", 512, 0.11, 0.005),
)
CHOICES = {
    "dense": Candidate("multi_worker"),
    "powersgd": Candidate("multi_worker", "powersgd"),
    "DiLoCo(32)": Candidate("multi_worker", local=DiLoCo(32)),
}


@functools.cache
def found(task: Task) -> models.Found:
    """The traced model."""
    model = models_keras.build(task.work, keras)
    inputs = tracing.specs_of(model, 8)
    optimizer = models_keras.optimizer(task.work, keras)
    workload = tracing.trace(model, inputs, 8, optimizer)
    device = Device(task.seconds, task.batch, task.fixed)
    return models.Found(dataclasses.replace(workload, batch=task.batch), device, GPU_COSTS, [])


@functools.cache
def waiting(workers: int, local: int) -> float:
    """How many times as long as a mean step the slowest of so many workers takes."""
    times = ComputeTimes(workers, spread=SPREAD).draw(np.random.default_rng(workers), STEPS)
    run = runs.local_steps(times, local) if local > 1 else runs.synchronous(times)
    return float(run.times[-1] / (STEPS // local * local) / times.mean())


def efficiency(
    task: Task,
    candidate: Candidate,
    workers: int,
    machines: Machines,
    strong: bool,
    waits: bool = True,
) -> float:
    """Samples per second, by those of as many devices that work alone."""
    known = found(task)
    local = candidate.local.steps if candidate.local else 1
    factor = waiting(workers, local) if waits and workers > 1 else 1.0
    slower = dataclasses.replace(machines, slowdown=factor)
    planner = Planner(known.workload, known.messages, known.device, slower, strong)
    return planner.predict(candidate, workers).efficiency


def reason(task: Task, candidate: Candidate, workers: int, machines: Machines, strong: bool) -> str:
    """What costs the most with so many workers: what to leave out to gain most."""
    replaced = functools.partial(dataclasses.replace, machines)
    no_coding = dataclasses.replace(machines.costs, codec=0.0)
    whole = dataclasses.replace(task, fixed=0.0)
    without = {
        "bytes": (task, replaced(link=Link(machines.link.alpha, 0.0)), True),
        "latency": (task, replaced(link=Link(0.0, machines.link.beta)), True),
        "coding": (task, replaced(costs=no_coding), True),
        "waiting for the slowest": (task, machines, False),
        "the part of a step that is not divided": (whole, machines, True),
    }
    gains = {
        name: efficiency(given, candidate, workers, other, strong, waits)
        for name, (given, other, waits) in without.items()
    }
    return max(gains, key=lambda name: gains[name])


def counts(task: Task, strong: bool) -> list[int]:
    """Numbers of workers; each has a sample at least."""
    return [n for n in WORKERS if not strong or n <= task.batch]


def table() -> str:
    """The knees, and what causes them."""
    head = ["scaling", "model", "link", "choice", "100 workers", "1,000", "10,000"]
    head += [f"{100 * KNEE:.0f} % up to", "beyond, the most is lost to"]
    rows = []
    for strong in (False, True):
        for task in TASKS:
            for link, rate in LINKS.items():
                for name, candidate in CHOICES.items():
                    rows.append(_row(strong, task, link, rate, name, candidate))
    return "\n".join(tables.table(head, rows, "ttttnnnnt"))


def _row(
    strong: bool, task: Task, link: str, rate: float, name: str, candidate: Candidate
) -> list[str]:
    machines = Machines(link_of(rate, LATENCY), costs=GPU_COSTS)
    of = functools.partial(efficiency, task, candidate)
    cells = [
        "–" if strong and n > task.batch else f"{100 * of(n, machines, strong):.0f} %"
        for n in (100, 1000, 10_000)
    ]
    good = [n for n in counts(task, strong) if of(n, machines, strong) >= KNEE]
    last = counts(task, strong)[-1]
    beyond = [n for n in counts(task, strong) if n > good[-1]]
    why = reason(task, candidate, beyond[0] if beyond else last, machines, strong)
    kind = "strong" if strong else "weak"
    title = task.title.partition(",")[0]
    return [kind, title, link, name, *cells, f"{good[-1]:,}", why if beyond else "–"]


def faults_table() -> str:
    """What deaths cost, with steps of one second."""
    head = ["workers", "deaths per hour", "elastic steps: of the time that counts"]
    rows = []
    for workers in (100, 1000, 10_000):
        times = np.ones((3600, workers))
        survived = elastic(times, FAULTS, np.random.default_rng(0))
        useful = survived.worker_steps / (survived.seconds * workers)
        per_hour = survived.failures / survived.seconds * 3600
        rows.append([f"{workers:,}", f"{per_hour:.1f}", f"{100 * useful:.1f} %"])
    return "\n".join(tables.table(head, rows, "nnn"))


def draw(path: Path) -> None:
    """A row of panels for weak and one for strong scaling."""
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = figure.subplots(2, len(TASKS), squeeze=False, sharex=True)
    for row, strong in enumerate((False, True)):
        for column, task in enumerate(TASKS):
            axes = panels[row, column]
            for style, (link, rate) in zip(("--", "-"), LINKS.items()):
                machines = Machines(link_of(rate, LATENCY), costs=GPU_COSTS)
                for number, (name, candidate) in enumerate(CHOICES.items()):
                    numbers = counts(task, strong)
                    heights = [
                        100 * efficiency(task, candidate, n, machines, strong) for n in numbers
                    ]
                    label = f"{name}, {link}"
                    axes.plot(numbers, heights, style, color=f"C{number}", label=label)
            alone = [100 / waiting(n, 1) if n > 1 else 100 for n in WORKERS]
            if not strong:
                axes.plot(WORKERS, alone, ":", color="0.4", label="waiting for the slowest alone")
            axes.axhline(100 * KNEE, color="0.8", linewidth=0.8)
            axes.set(xscale="log", ylim=(0, 105))
            kind = f"strong scaling, {task.batch} samples for all" if strong else "weak scaling"
            axes.set_title(f"{task.title.partition(',')[0]}: {kind}", fontsize="medium")
            axes.grid(alpha=0.3)
    for axes in panels[-1]:
        axes.set_xlabel("workers")
    for axes in panels[:, 0]:
        axes.set_ylabel("efficiency (%)")
    lines = panels[0, 0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle("Predicted by the model of tfdist plan, not measured")
    figure.savefig(path, dpi=100)


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("--update", action="store_true", help="put the tables into the page")
    options.add_plot(parser, CHART, "the chart")
    return parser.parse_args()


def main() -> None:
    """Prints the tables; writes them and the chart where the command line wants them."""
    arguments = parse_arguments()
    found_tables: Sequence[tuple[str, str]] = (("knees", table()), ("deaths", faults_table()))
    for name, text in found_tables:
        print(text, "\n")
        if arguments.update:
            pages.update(PAGE, name, text)
    if arguments.plot:
        draw(arguments.plot)


if __name__ == "__main__":
    main()
