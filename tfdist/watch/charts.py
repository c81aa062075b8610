"""Charts as HTML and SVG without scripts: lines, and bars that consist of parts.

The lines are drawn in an SVG that is stretched to the width of the page; text is HTML beside it, so
that it keeps its size.
"""

from __future__ import annotations

import html
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence

from tfdist.watch.curves import Points, not_finite_since

_COLOURS = 8  # that the template has
_MOST_DOTS = 60


def lines(
    title: str,
    series: Mapping[str, Points],
    show: Callable[[float], str],
    from_zero: bool = False,
) -> str:
    """A chart of lines by epoch, with a legend that has their last values, finite or not.

    Args:
        title: of the chart.
        series: points (epoch from 1, value) by name. Values that are not finite are not drawn.
        show: makes text of a value.
        from_zero: whether the axis begins at 0, as for times.

    Example:

    >>> from tfdist.watch.charts import lines
    >>> chart = lines("loss", {"loss": [(1, 0.5), (2, 0.25)]}, "{:g}".format)
    >>> chart.count("<path"), "0.25" in chart
    (3, True)
    """
    finite = {
        name: [point for point in points if math.isfinite(point[1])]
        for name, points in series.items()
    }
    every = [point for points in finite.values() for point in points]
    legend = "".join(
        f'<li><i class="k{number % _COLOURS}"></i>{html.escape(name)} '
        f"<b>{html.escape(_last(points, show))}</b></li>"
        for number, (name, points) in enumerate(series.items())
    )
    head = f'<figure><figcaption>{html.escape(title)}</figcaption><ul class="legend">{legend}</ul>'
    if not every:
        return f"{head}</figure>"
    epochs = [x for points in series.values() for x, _ in points]
    left, right = min(epochs), max(epochs)
    low, high = _around([y for _, y in every] + [0.0] * from_zero)

    def place(point: tuple[float, float]) -> str:
        x = (point[0] - left) / (right - left) if right > left else 0.5
        return f"{1000 * x:.1f} {300 - 300 * _part(point[1], low, high):.1f}"

    drawn = []
    for number, points in enumerate(finite.values()):
        if len(points) > 1:
            path = "M" + "L".join(map(place, points))
            drawn.append(f'<path class="c{number % _COLOURS}" d="{path}"/>')
        for point in points if len(points) <= _MOST_DOTS else points[-1:]:
            drawn.append(
                f'<path class="dot c{number % _COLOURS}" d="M{place(point)}h0">'
                f"<title>epoch {point[0]:g}: {html.escape(show(point[1]))}</title></path>"
            )
    marks = "".join(f"<span>{html.escape(show(y))}</span>" for y in (high, low / 2 + high / 2, low))
    ends = f"<span>epoch {left:g}</span>" + (f"<span>{right:g}</span>" if right > left else "")
    return (
        f'{head}<div class="plot"><div class="y">{marks}</div>'
        f'<svg viewBox="0 0 1000 300" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(title)} by epoch">'
        f'<path class="grid" d="M0 0H1000M0 150H1000M0 300H1000"/>{"".join(drawn)}</svg>'
        f'<div class="x">{ends}</div></div></figure>'
    )


def _last(points: Points, show: Callable[[float], str]) -> str:
    if not points:
        return "not known"
    return not_finite_since(points) or show(points[-1][1])


def _part(value: float, low: float, high: float) -> float:
    """Where `value` is between two bounds, from 0 to 1; also of bounds that are very far apart."""
    scale = 1.0 if math.isfinite(high - low) else 0.5
    return (scale * value - scale * low) / (scale * high - scale * low)


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Bounds of an axis: those of the values, with room where all are equal."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    room = abs(low) / 2 or 1.0
    return max(low - room, -sys.float_info.max), min(high + room, sys.float_info.max)


def bars(
    rows: Mapping[str, Mapping[str, float]], names: Mapping[str, str], show: Callable[[float], str]
) -> str:
    """Bars that consist of parts, as long as their sums.

    Args:
        rows: the sizes of the parts by key, for each bar.
        names: what the parts are called, by key; in their order.
        show: makes text of a size.
    """
    longest = max((sum(parts.values()) for parts in rows.values()), default=0.0) or 1.0
    used = {key for parts in rows.values() for key in parts}
    legend = "".join(
        f'<li><i class="k{number % _COLOURS}"></i>{html.escape(name)}</li>'
        for number, (key, name) in enumerate(names.items())
        if key in used
    )
    found = [f'<ul class="legend">{legend}</ul>' if len(names) > 1 else "", '<div class="bars">']
    for label, parts in rows.items():
        pieces = "".join(
            f'<i class="k{number % _COLOURS}" style="width:{100 * parts[key] / longest:.2f}%" '
            f'title="{html.escape(name)}: {html.escape(show(parts[key]))}"></i>'
            for number, (key, name) in enumerate(names.items())
            if key in parts
        )
        total = html.escape(show(sum(parts.values())))
        found.append(
            f'<span>{html.escape(label)}</span><div class="bar">{pieces}</div><b>{total}</b>'
        )
    return "".join([*found, "</div>"])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column has names, and whose others have numbers."""
    first = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{first}</tr></thead><tbody>{body}</tbody></table>"
