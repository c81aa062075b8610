"""Charts of the loss against bytes and against seconds."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from benchmarks.local_sgd.choices import CHOICES
from benchmarks.local_sgd.found import Found
from benchmarks.local_sgd.losses import RATE
from benchmarks.side_by_side.rig import LINKS

matplotlib.use("Agg")
_COLORS = 10  # of matplotlib's cycle


def draw(found: Found, task: str, path: Path) -> None:
    """Draws the mean loss of a task after each block, against what was spent until then.

    Args:
        found: what was measured.
        task: the task.
        path: the path of the PNG.
    """
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    # Seconds are those of the fastest seed: whatever else runs on the machine takes time.
    kinds = {
        "bytes": ("bytes sent by a host", statistics.mean),
        "seconds": (f"seconds on {LINKS[RATE].title}", min),
    }
    for axes, (what, (label, of_seeds)) in zip(figure.subplots(1, 2), kinds.items()):
        for number, (choice, (title, *_)) in enumerate(CHOICES.items()):
            runs = found.runs(task, choice)
            spent = [of_seeds(block) for block in zip(*(run[what] for run in runs))]
            losses = [statistics.mean(block) for block in zip(*(run["loss"] for run in runs))]
            if runs:
                places = list(itertools.accumulate(spent))
                style = "-" if number < _COLORS else "--"
                color = f"C{number % _COLORS}"
                axes.plot(places, losses, style, label=title, marker=".", color=color)
        axes.set(xlabel=f"{label} ({task})", ylabel="loss on held-out data", xscale="log")
    lines, titles = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, titles, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path, dpi=120)
