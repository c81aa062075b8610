"""Charts of step time by bandwidth."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.runs import Group
from benchmarks.side_by_side.systems import SYSTEMS

matplotlib.use("Agg")
# After so many lines the colors begin again, with another marker.
COLORS, MARKERS = 10, "os^"
# Labels on the logarithmic axis, in each power of ten.
STEPS = (1, 1.5, 2, 3, 5, 7)


def draw(groups: list[Group], path: Path) -> None:
    """One panel for each group, with a line for each system.

    Args:
        groups: groups with limited links.
        path: the path of the PNG.
    """
    figure = Figure(figsize=(8, 4.5 * len(groups)), layout="constrained")
    for axes, group in zip(figure.subplots(len(groups), 1, squeeze=False)[:, 0], groups):
        rates = group.rates[::-1]
        links = [LINKS[rate][1] for rate in rates]
        for number, name in enumerate(group.systems):
            if name in group.errors:
                continue
            system = SYSTEMS[name]
            found = [group.seconds(name, rate if system.exchanges else None) for rate in rates]
            heights = [1000 * statistics.median(own) if own else math.nan for own in found]
            style = ":" if not system.exchanges else "-" if name.startswith("tfdist") else "--"
            label = system.title.replace("`", "")
            marker = MARKERS[number // COLORS]
            color = f"C{number % COLORS}"
            axes.plot(links, heights, style, color=color, marker=marker, label=label)
        axes.set(yscale="log", ylabel="ms per step", xlabel="link")
        axes.yaxis.set_major_locator(LogLocator(subs=STEPS))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.set_title(f"{group.work}, {group.hosts} hosts, {group.batch} samples per rank")
        axes.grid(alpha=0.3, which="both")
        axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)
