"""The tables and the picture of `convergence.py`."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.common import machine, tables

matplotlib.use("Agg")


@dataclasses.dataclass(frozen=True)
class Labels:
    """How a task appears in tables and picture.

    Attributes:
        title: what is learnt.
        metric: the test metric, with its unit.
        digits: the number of decimals of the metric.
        target: the training loss to be reached.
        losses: the lowest and highest loss in the picture. Losses that diverge are cut off.
    """

    title: str
    metric: str
    digits: int
    target: float
    losses: tuple[float, float]


TASKS = {
    "digits": Labels("Handwritten digits, small CNN", "test accuracy, %", 1, 0.1, (1e-3, 4.0)),
    "mlp": Labels("Handwritten digits, dense", "test accuracy, %", 1, 0.1, (1e-3, 4.0)),
    "mlp-slow": Labels(
        "Handwritten digits, dense, a fifth of the rate", "test accuracy, %", 1, 0.1, (1e-3, 4.0)
    ),
    "characters": Labels(
        "Characters, Transformer, momentum 0.9", "held-out bits/char", 2, 2.8, (2.3, 4.0)
    ),
    "characters-plain": Labels(
        "Characters, Transformer, no momentum", "held-out bits/char", 2, 2.8, (2.3, 4.0)
    ),
}
# The colour, and which curves of a compressor are drawn. A family of compressors has one colour.
CURVES = {
    ("none", False): ("black", "-"),
    ("fp16", False): ("tab:gray", "-"),
    ("int8", False): ("tab:blue", "-"),
    ("qsgd, 4 levels", False): ("tab:blue", "--"),
    ("terngrad", False): ("tab:blue", ":"),
    ("signsgd", True): ("tab:green", "-"),
    ("onebit", True): ("tab:green", "--"),
    ("topk 1 %", True): ("tab:red", "-"),
    ("topk 1 %", False): ("tab:red", "--"),
    ("dgc 1 %", False): ("tab:red", ":"),
    ("randomk 1 %", True): ("tab:orange", "-"),
    ("powersgd, rank 1", True): ("tab:purple", "-"),
    ("powersgd, rank 4", True): ("tab:purple", "--"),
}

Result = dict[str, Any]


def steps_to_target(result: Result) -> list[int]:
    """For each run that reached the target loss, the first step at which it did."""
    target = TASKS[result["task"]].target
    first = [
        next((step for step, loss in run["losses"] if loss <= target), None)
        for run in result["runs"]
    ]
    return [step for step in first if step is not None]


def metric_text(result: Result) -> str:
    """The mean of the test metric over the runs, and its standard deviation.

    A cross-entropy has no bound, so a single run can make the mean meaningless.
    """
    values = [run["metric"] for run in result["runs"]]
    decimals = TASKS[result["task"]].digits
    if not all(value < 1000 for value in values):
        return "diverged"
    mean = f"{np.mean(values):.{decimals}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{decimals}f}" if len(values) > 1 else mean


def steps_text(result: Result) -> str:
    """The mean number of steps to the target loss, and how many runs got there if not all did."""
    reached = steps_to_target(result)
    if not reached:
        return "never"
    runs = len(result["runs"])
    note = "" if len(reached) == runs else f" ({len(reached)} of {runs})"
    return f"{statistics.fmean(reached):.0f}{note}"


def megabytes_text(result: Result) -> str:
    """The megabytes that a replica sent up to the target loss."""
    reached = steps_to_target(result)
    if not reached:
        return "–"
    return f"{statistics.fmean(reached) * result['runs'][0]['bytes_per_step'] / 1e6:.2g}"


def line(result: Result) -> str:
    """One result as a line, to show progress."""
    feedback = " with error feedback" * result["error_feedback"]
    return (
        f"{result['task']}, {result['replicas']} replicas, {result['compressor']}{feedback}: "
        f"{metric_text(result)}; steps to target: {steps_text(result)}"
    )


def text(results: list[Result]) -> str:
    """The Markdown text between the page's markers: a table for each task."""
    parts = [
        f"{machine.measured_with('TensorFlow', 'Keras')}; means over "
        f"{len(results[0]['runs'])} seeds. Made by `make benchmark-convergence`."
    ]
    for task, labels in TASKS.items():
        mine = [result for result in results if result["task"] == task]
        if mine:
            parts.append(f"**{labels.title}**, target: training loss {labels.target:g}")
            parts.append("\n".join(_rows(mine, labels)))
    return "\n\n".join(parts)


def _rows(results: list[Result], labels: Labels) -> list[str]:
    """The lines of one table."""
    replicas = sorted({result["replicas"] for result in results})
    head = ["compressor", "error feedback", "bytes ÷"]
    for count in replicas:
        head += [f"{count} replicas: {labels.metric}", "steps to target", "MB to target"]
    rows = []
    for name, feedback in dict.fromkeys((r["compressor"], r["error_feedback"]) for r in results):
        same = [r for r in results if (r["compressor"], r["error_feedback"]) == (name, feedback)]
        run = same[0]["runs"][0]
        row = [name, "yes" if feedback else "", f"{run['model_bytes'] / run['bytes_per_step']:.3g}"]
        for count in replicas:
            result = next((r for r in same if r["replicas"] == count), None)
            row += _cells(result) if result else ["crashed"] * 3
        rows.append(row)
    return tables.table(head, rows, "ttn")


def _cells(result: Result) -> list[str]:
    return [metric_text(result), steps_text(result), megabytes_text(result)]


def plot(results: list[Result], path: Path) -> None:
    """Draws loss against bytes, a panel for each task, with the largest number of replicas."""
    tasks = [task for task in TASKS if any(result["task"] == task for result in results)]
    columns = min(2, len(tasks))
    rows = -(-len(tasks) // columns)
    figure = Figure(figsize=(4.2 * columns + 2.6, 4.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(tasks) :]:
        axes.set_visible(False)
    for axes, task in zip(panels, tasks):
        mine = [result for result in results if result["task"] == task]
        most = max(result["replicas"] for result in mine)
        for result in mine:
            key = result["compressor"], result["error_feedback"]
            if result["replicas"] == most and key in CURVES:
                _draw(axes, result, *CURVES[key])
        labels = TASKS[task]
        axes.axhline(labels.target, color="0.5", linewidth=0.8, label="target of the table")
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yscale("linear" if task.startswith("characters") else "log")
        axes.set_ylim(labels.losses)
        axes.set_title(f"{labels.title}, {most} replicas", fontsize="medium")
        axes.set_xlabel("sent by a replica (MB)")
        axes.set_ylabel("training loss (nats)")
        axes.grid(alpha=0.3)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=120)


def _draw(axes: Any, result: Result, colour: str, style: str) -> None:
    """The mean curve of the runs."""
    curves = np.array([run["losses"] for run in result["runs"]])
    megabytes = curves[0, :, 0] * result["runs"][0]["bytes_per_step"] / 1e6
    # The label says "without error feedback" only where both curves are drawn.
    name = result["compressor"]
    if (name, not result["error_feedback"]) in CURVES:
        name += ", with error feedback" if result["error_feedback"] else ", without error feedback"
    axes.plot(megabytes, curves[:, :, 1].mean(axis=0), style, color=colour, label=name)
