"""Chart of the memory of a rank, by the number of ranks and by what they divide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

matplotlib.use("Agg")

TITLE = "Memory of a rank by the number of ranks"
# For each system, and for each of its modes: bytes per weight by the number of ranks.
Lines = Mapping[str, Mapping[str, Mapping[int, float]]]


def draw(lines: Lines, path: Path) -> None:
    """One panel for each system, with a line for each mode.

    Args:
        lines: what was measured.
        path: the path of the PNG.
    """
    figure = Figure(figsize=(5.5 * len(lines), 4.5), layout="constrained")
    panels = figure.subplots(1, len(lines), squeeze=False, sharey=True)[0]
    for axes, (system, modes) in zip(panels, lines.items()):
        numbers = sorted({ranks for by_ranks in modes.values() for ranks in by_ranks})
        for mode, by_ranks in modes.items():
            places = sorted(by_ranks)
            axes.plot(places, [by_ranks[ranks] for ranks in places], marker="o", label=mode)
        axes.set(xlabel="ranks", xticks=numbers, title=system)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    # The panels share this axis: limits that are set before the last line would stay as they are.
    panels[0].set(ylabel="bytes for each weight at the peak of a step", ylim=(0, None))
    figure.savefig(path, dpi=120)
