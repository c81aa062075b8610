"""What the logs of a run are as curves, and where these are no numbers any more."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsFloat

from tfdist.watch.numbers import Run

Points = Sequence[tuple[float, float]]
"""The epoch from 1, and the value."""

STALENESS = ("staleness", "staleness_max", "dropped", "dropped_parts", "waits", "lost_updates")
"""What parameter servers add to the logs."""

MEMBERS = ("replicas", "recoveries", "lost_residuals")
"""What elastic jobs add to the logs."""


def series(run: Run, name: str) -> Points:
    """The values of a key of the logs, also those that are not finite."""
    values = [(epoch.number + 1, _as_number(epoch.logs.get(name))) for epoch in run.epochs]
    return [(number, value) for number, value in values if value is not None]


def _as_number(value: SupportsFloat | None) -> float | None:
    """A point of a curve; None for other things in logs, such as texts, or an array of classes."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def of_training(run: Run) -> dict[str, None]:
    """The keys of loss and metrics: of the logs, without what tfdist adds, and no other objects."""
    added = {key for epoch in run.epochs for key in epoch.history()} | {*STALENESS, *MEMBERS}
    added -= run.metrics
    keys = (key for epoch in run.epochs for key in epoch.logs if isinstance(key, str))
    return dict.fromkeys(key for key in keys if key not in added)


def not_finite_since(points: Points) -> str:
    """How a curve ends that ends with values that are not finite; "" for other curves.

    Example:

    >>> from tfdist.watch.curves import not_finite_since
    >>> not_finite_since([(1, 0.5), (2, float("nan")), (3, float("nan"))])
    'nan since epoch 2'
    """
    last = max((n for n, (_, value) in enumerate(points) if math.isfinite(value)), default=-1)
    rest = points[last + 1 :]
    kinds = dict.fromkeys(f"{value:g}" for _, value in rest)
    return f"{' or '.join(kinds)} since epoch {rest[0][0]:g}" if rest else ""
