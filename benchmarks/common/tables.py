"""Markdown tables, and figures with their spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

_LINES = {"t": "---|", "n": "---:|"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], columns: str = "tn") -> list[str]:
    """The lines of a table; none without rows.

    Args:
        head: the columns' titles.
        rows: the cells of each row.
        columns: a letter for each column: "t" for text, "n" for numbers. The last letter is also
            for all further columns.
    """
    lines = [_line(cells) for cells in rows]
    under = "".join(_LINES[kind] for kind in columns.ljust(len(head), columns[-1]))
    return [_line(head), f"|{under}", *lines] if lines else []


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def with_quartiles(values: Sequence[float], style: str) -> str:
    """The median, and the quartiles in brackets.

    Args:
        values: at least one value; for a single value no quartiles are shown.
        style: the style of the figures, as `format` takes it.
    """
    if len(values) == 1:
        return f"{values[0]:{style}}"
    low, middle, high = statistics.quantiles(values, n=4)
    return _spread(middle, low, high, style)


def with_range(values: Sequence[float], style: str) -> str:
    """The median, and in brackets the lowest and the highest, if there are several values.

    Arguments as above.
    """
    if len(values) == 1:
        return f"{values[0]:{style}}"
    return _spread(statistics.median(values), min(values), max(values), style)


def with_interval(values: Sequence[float], style: str) -> str:
    """The median, and in brackets its `interval`.

    Args:
        values: at least one.
        style: as above.
    """
    return _spread(statistics.median(values), *interval(values), style)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the true median is, in 95 of 100 cases.

    The interval is from the k-th lowest to the k-th highest value, and tells nothing of how they
    are distributed. Fewer than six values promise less: then it is from the lowest to the highest.

    Args:
        values: at least one.
    """
    found = sorted(values)
    outside = outside_each_side(len(found))
    return found[outside], found[-1 - outside]


def outside_each_side(count: int, confidence: float = 0.95) -> int:
    """How many of so many values may be left out at either end of an interval of the median.

    Each value is below the true median with probability 1/2. The interval misses the true median
    only if at most so many values are on one side of it (Conover, "Practical Nonparametric
    Statistics", 3rd edition, section 3.2).
    """
    outside, missed = 0, 0.0
    for number in range(count // 2):
        missed += 2 * math.comb(count, number) / 2**count
        if missed > 1 - confidence:
            break
        outside = number
    return outside


def _spread(middle: float, low: float, high: float, style: str) -> str:
    return f"{middle:{style}} ({low:{style}}–{high:{style}})"
