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


def reached(run: Run) -> tuple[int, float] | None:
    """The batches and seconds at which a run was first seen at its target loss; None for never."""
    return next(((b, s) for b, s, loss in run["curve"] if loss <= run["target"]), None)


def learnt(run: Run) -> bool:
    """Whether the loss at the end of a run is at most half of the loss before the training."""
    return bool(run["curve"]) and run["curve"][-1][2] <= run["start_loss"] / 2


def text(measured: list[Run], delays: list[float]) -> str:
    """The Markdown text between the page's markers.

    Args:
        measured: all runs.
        delays: seconds of a step of each worker, the slow one last.
    """
    runs = [run for run in measured if run["kind"] != "alone"]
    seeds = len({run["seed"] for run in runs})
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    parts = [
        f"{machine.measured_with('TensorFlow', 'Keras')}; seeds: {seeds}. "
        "Made by `make benchmark-async`."
    ]
    for task in tasks:
        alone = {r["delay"]: rate([r]) for r in _of(measured, task, "alone")}
        together = sum(alone[delay] for delay in delays)
        rates = ", ".join(f"{1000 * d:g} ms: {r:.1f} updates/s" for d, r in alone.items())
        parts.append(
            f"**Stragglers, {task}.** {len(delays)} workers, {len(delays) - 1} with a step of "
            f"{1000 * delays[0]:g} ms and one of {1000 * delays[-1]:g} ms. Alone, a worker with "
            f"{rates}; the sum of all is {together:.1f}."
        )
        parts.append("\n".join(_stragglers(_of(measured, task, "stragglers"), together)))
    parts.append("**Divergence.** Workers without delays.")
    parts.append("\n".join(_divergence(_of(measured, None, "divergence"))))
    return "\n\n".join(parts)


def _of(measured: list[Run], task: str | None, kind: str) -> list[Run]:
    return [r for r in measured if r["kind"] == kind and task in (None, r["task"])]


def _stragglers(runs: list[Run], together: float) -> list[str]:
    """The lines of the table of one task."""
    head = ["policy", "updates/s", "gradients/s", "of the sum", "÷ synchronous", "mean τ"]
    head += ["dropped", "batches to target", "seconds to target"]
    rows = []
    by_policy = {name: [r for r in runs if r["policy"] == name] for name in POLICIES}
    peer = by_policy["synchronous"]
    for name, own in by_policy.items():
        if not own:
            continue
        updates = rate(own)
        gradients = updates * own[0]["parts"]
        row = [name, f"{updates:.1f}", f"{gradients:.1f}", f"{gradients / together:.2f}"]
        row.append(f"{gradients / (rate(peer) * peer[0]['parts']):.2f}" if peer else "–")
        drops = sum(run["drops"] for run in own)
        row.append(f"{np.mean([run['mean_staleness'] for run in own]):.1f}")
        row.append(f"{100 * drops / (drops + sum(run['updates'] for run in own)):.0f} %")
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
        measured: all runs.
        folder: where `async_stragglers.png` and `async_divergence.png` go.
    """
    _draw(_of(measured, None, "stragglers"), "seconds", folder / "async_stragglers.png")
    _draw(_of(measured, None, "divergence"), "batches", folder / "async_divergence.png")


def _draw(runs: list[Run], unit: str, path: Path) -> None:
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    figure = Figure(figsize=(4.2 * len(tasks) + 2.4, 3.8), layout="constrained")
    column = ("batches", "seconds").index(unit)
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks):
        mine = [run for run in runs if run["task"] == task and run["curve"]]
        named: set[str] = set()
        for run in mine:
            points, name, colour = np.array(run["curve"]), run["policy"], POLICIES[run["policy"]]
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
