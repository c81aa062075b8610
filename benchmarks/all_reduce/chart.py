"""A chart of the algorithms' times by that of TensorFlow's ring."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.all_reduce import plan
from benchmarks.all_reduce.report import Cell

matplotlib.use("Agg")
TITLE = "Time of each algorithm ÷ that of TensorFlow's ring; dotted: by the α–β model"
# Labels on the logarithmic axis, in each power of ten.
STEPS = (1, 2, 5)
# Panels of a link: the fewest ranks, the most, and some between.
MOST_PANELS = 3


def draw(cells: Sequence[Cell], path: Path) -> None:
    """A row of panels for each link, with a line for each system and a dotted one for its model.

    Args:
        cells: what was measured, with the same numbers of ranks on each link.
        path: the path of the PNG.
    """
    links = list(dict.fromkeys(cell.link for cell in cells))
    counts = _some(sorted({cell.ranks for cell in cells}))
    size = (4.0 * len(counts) + 2.2, 3.4 * len(links))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(links), len(counts), squeeze=False, sharex=True, sharey=True)
    for cell in cells:
        if cell.ranks in counts:
            axes = panels[links.index(cell.link), counts.index(cell.ranks)]
            _draw(axes, cell)
    for axes in panels[-1]:
        axes.set_xlabel("vector (bytes)")
    for axes in panels[:, 0]:
        axes.set_ylabel("time ÷ that of TensorFlow's ring")
    lines: dict[str, Any] = {}
    for axes in panels.ravel():
        handles, labels = axes.get_legend_handles_labels()
        lines |= dict(zip(labels, handles))
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)


def _draw(axes: Any, cell: Cell) -> None:
    systems = [*plan.ALGORITHMS, plan.ONE_MESSAGE, plan.HOROVOD]
    for number, name in enumerate(systems):
        sizes = [size for size in cell.sizes if name in cell.systems(size)]
        sizes = [size for size in sizes if cell.ratios(size, name)]
        if not sizes:
            continue
        color = f"C{number}"
        heights = [statistics.median(cell.ratios(size, name)) for size in sizes]
        style = "o-" if name in plan.ALGORITHMS else "s--"
        axes.plot(sizes, heights, style, color=color, markersize=3, label=name)
        models = [(cell.predicted(size, name), cell.predicted(size, plan.RING)) for size in sizes]
        if name in plan.ALGORITHMS and all(ring for _, ring in models):
            axes.plot(sizes, [own / ring for own, ring in models], ":", color=color, linewidth=1)
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.set(xscale="log", yscale="log")
    axes.yaxis.set_major_locator(LogLocator(subs=STEPS))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"{plan.LINKS[cell.link].title}, {cell.ranks} ranks", fontsize="medium")
    axes.grid(alpha=0.3)


def _some(counts: list[int]) -> list[int]:
    """The first, the middle and the last of many."""
    if len(counts) <= MOST_PANELS:
        return counts
    return [counts[0], counts[len(counts) // 2], counts[-1]]
