"""The tables and the pictures of `async_stragglers.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import machine, tables

matplotlib.use("Agg")

WITHOUT_SERVERS = "synchronous, multi_worker"
SYNCHRONOUS = ("synchronous", WITHOUT_SERVERS)
# The policies with which all workers soon go at the pace of the slowest one.
OF_THE_SLOWEST = ("SSP(10)", "SSP(3)", *SYNCHRONOUS)
# One policy of each kind of step, for workers of which none is slow.
EQUAL = ("none", *SYNCHRONOUS)
# The policies by their names in the tables, with their colours in the pictures.
POLICIES = {
    "none": "tab:blue",
    "InverseLR()": "tab:green",
    "Bounded(8)": "tab:purple",
    'Bounded(8, "wait")': "tab:pink",
    "SSP(10)": "tab:orange",
    "SSP(3)": "tab:red",
    "synchronous": "black",
    WITHOUT_SERVERS: "tab:gray",
}
# The policies that are compared with many workers.
COMPARED = ("none", "InverseLR()")
# The task's metric, for the pictures.
LOSSES = {"digits": "cross-entropy (nats)", "linear": "mean squared error"}

Run = dict[str, Any]


def rate(runs: Iterable[Run]) -> float:
    """Updates per second over all runs; each run counts from its first update to its last."""
    runs = list(runs)
    return sum(run["updates"] - 1 for run in runs) / sum(run["seconds"] for run in runs)


def gradients_per_second(runs: list[Run]) -> float:
    """As `rate`, of gradients: an update may have several of them."""
    return rate(runs) * runs[0]["parts"]


def to_target(run: Run) -> list[tuple[int, float, float]]:
    """The curve of a run until it was first seen at its target loss."""
    curve = run["curve"]
    places = (place for place, (_, _, loss) in enumerate(curve, 1) if loss <= run["target"])
    return curve[: next(places, None)]


def reached(run: Run) -> tuple[int, float] | None:
    """The batches and seconds at which a run was first seen at its target loss; None for never."""
    batches, seconds, loss = to_target(run)[-1] if run["curve"] else (0, 0.0, np.inf)
    return (batches, seconds) if loss <= run["target"] else None


def learnt(run: Run) -> bool:
    """Whether the loss at the end of a run is at most half of the loss before the training."""
    return bool(run["curve"]) and run["curve"][-1][2] <= run["start_loss"] / 2


def text(part: str, measured: list[Run], delays: list[float]) -> str:
    """The Markdown text between two of the page's markers.

    Args:
        part: "stragglers" or "divergence".
        measured: all runs.
        delays: seconds of a step of each worker, the slow one last.
    """
    runs = _of(measured, None, part)
    made = (
        f"{machine.measured_with('TensorFlow', 'Keras')}; "
        f"seeds: {len({run['seed'] for run in runs})}. Made by `make benchmark-async`."
    )
    if part == "divergence":
        parts = ["**Divergence.** Workers without delays.", "\n".join(_divergence(runs))]
    else:
        parts = _by_task(measured, delays)
    return "\n\n".join([made, *parts])


def _by_task(measured: list[Run], delays: list[float]) -> list[str]:
    """What is told of workers of which one is slow: a heading and a table for each task."""
    parts = []
    fast, slow = 1000 * delays[0], 1000 * delays[-1]
    for task in dict.fromkeys(run["task"] for run in _of(measured, None, "stragglers")):
        alone = {r["delay"]: rate([r]) for r in _of(measured, task, "alone")}
        together = sum(alone[delay] for delay in delays)
        rates = ", ".join(f"{1000 * d:g} ms: {r:.1f} updates/s" for d, r in alone.items())
        heading = (
            f"**Stragglers, {task}.** {len(delays)} workers, {len(delays) - 1} with a step of "
            f"{fast:g} ms and one of {slow:g} ms. Alone, a worker with {rates}; the sum of all is "
            f"{together:.1f}."
        )
        if equal := _of(measured, task, "equal"):
            rates = "; ".join(f"{r['policy']} {gradients_per_second([r]):.1f}" for r in equal)
            heading += f" Together, with {fast:g} ms each, in gradients/s: {rates}."
        parts += [heading, "\n".join(_stragglers(_of(measured, task, "stragglers"), together))]
    return parts


def _of(measured: list[Run], task: str | None, kind: str) -> list[Run]:
    return [r for r in measured if r["kind"] == kind and task in (None, r["task"])]


def _stragglers(runs: list[Run], together: float) -> list[str]:
    """The lines of the table of one task."""
    head = ["policy", "updates/s", "gradients/s", "of the sum", "÷ synchronous", "mean τ"]
    head += ["dropped", "batches", "batches to target", "seconds to target"]
    rows = []
    by_policy = {name: [r for r in runs if r["policy"] == name] for name in POLICIES}
    peer = by_policy["synchronous"]
    for name, own in by_policy.items():
        if not own:
            continue
        gradients = gradients_per_second(own)
        row = [name, f"{rate(own):.1f}", f"{gradients:.1f}", f"{gradients / together:.2f}"]
        row.append(f"{gradients / gradients_per_second(peer):.2f}" if peer else "–")
        drops = sum(run["drops"] for run in own)
        batches = drops + sum(run["updates"] for run in own)
        row.append(f"{np.mean([run['mean_staleness'] for run in own]):.1f}")
        row += [f"{100 * drops / batches:.0f} %", f"{batches / len(own):.0f}"]
        rows.append([*row, *_to_target(own)])
    return tables.table(head, rows)


def _to_target(runs: list[Run]) -> list[str]:
    """Mean batches and seconds to the target loss, with the seconds' standard deviation."""
    points = [point for run in runs if (point := reached(run))]
    if not points:
        return ["never", "never"]
    batches, seconds = np.mean(points, axis=0)
    spread = f" ± {np.std([s for _, s in points], ddof=1):.1f}" if len(points) > 1 else ""
    note = "" if len(points) == len(runs) else f" ({len(points)} of {len(runs)})"
    return [f"{batches:.0f}", f"{seconds:.1f}{spread}{note}"]


def _divergence(runs: list[Run]) -> list[str]:
    head = ["task", "learning rate", "workers", "policy", "mean τ", "updates/s"]
    head += ["seeds that learnt", "loss at the end"]
    rows = []
    by_kind: dict[tuple, list[Run]] = {}
    for run in runs:
        by_kind.setdefault((run["task"], run["workers"], run["policy"]), []).append(run)
    for task, workers, name in sorted(by_kind, key=lambda kind: kind[:2]):
        own = by_kind[task, workers, name]
        staleness = np.mean([run["mean_staleness"] for run in own])
        losses = ", ".join(f"{run['curve'][-1][2]:.2g}" for run in own if run["curve"])
        row = [task, f"{own[0]['learning_rate']:g}", str(workers), name, f"{staleness:.1f}"]
        row += [f"{rate(own):.0f}", f"{sum(map(learnt, own))} of {len(own)}", losses]
        rows.append(row)
    return tables.table(head, rows, "tnntnnnt")


def plot(measured: list[Run], folder: Path) -> None:
    """Draws the losses against seconds and, for many workers, against batches.

    Args:
        measured: all runs; what was not measured is not drawn.
        folder: where `async_stragglers.png` and `async_divergence.png` go.
    """
    for kind, unit in (("stragglers", "seconds"), ("divergence", "batches")):
        runs = _of(measured, None, kind)
        if runs:
            _draw(runs, unit, folder / f"async_{kind}.png")


def _draw(runs: list[Run], unit: str, path: Path) -> None:
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    figure = Figure(figsize=(4.2 * len(tasks) + 2.4, 3.8), layout="constrained")
    column = ("batches", "seconds").index(unit)
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks):
        mine = [run for run in runs if run["task"] == task and run["curve"]]
        named: set[str] = set()
        for run in mine:
            points, name, colour = np.array(to_target(run)), run["policy"], POLICIES[run["policy"]]
            if run.get("workers") == 1:
                name, colour = f"{name}, one worker", "black"
            label = None if name in named else name
            axes.plot(points[:, column], points[:, 2], color=colour, alpha=0.7, label=label)
            named.add(name)
        axes.set_yscale("log")
        # Losses that diverge are cut off.
        axes.set_ylim(top=10 * max(run["start_loss"] for run in mine))
        axes.set_title(f"{task}, learning rate {min(run['learning_rate'] for run in mine):g}")
        axes.set_xlabel(unit)
        axes.set_ylabel(LOSSES[task])
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=120)
