"""The predictions as text."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

from tfdist.plan import trained
from tfdist.plan.candidate import Candidate
from tfdist.plan.prediction import Prediction


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What an epoch costs; a million samples where nobody knows how many it has.

    Attributes:
        samples: of an epoch; None if they are not known.
        price: of one machine for an hour; None if it is not known.
    """

    samples: int | None
    price: float | None

    def seconds(self, prediction: Prediction) -> float | None:
        """Of an epoch."""
        return None if self.samples is None else prediction.epoch_seconds(self.samples)

    def cost(self, prediction: Prediction) -> float | None:
        """Of an epoch, for all machines."""
        seconds = self.seconds(prediction)
        if seconds is None or self.price is None:
            return None
        return prediction.machines * self.price * seconds / 3600

    def cost_of_a_million(self, prediction: Prediction) -> float | None:
        """Of a million samples, for all machines."""
        if self.price is None:
            return None
        seconds = 1e6 / prediction.samples_per_second
        return prediction.machines * self.price * seconds / 3600


def as_data(predictions: Sequence[Prediction], epoch: Epoch) -> list[dict[str, Any]]:
    """The predictions as plain data, for JSON."""
    return [
        {
            "workers": p.workers,
            "machines": p.machines,
            "strategy": p.candidate.strategy,
            **p.candidate.options,
            "reducers": p.candidate.reducers,
            "code": p.candidate.code if p.workers > 1 else None,
            "exact": p.candidate.is_exact,
            "measured_loss": trained.loss(p.candidate),
            "accumulation_steps": p.accumulated,
            "step_seconds": p.step,
            "samples_per_second": p.samples_per_second,
            "efficiency": p.efficiency,
            "bytes_per_step": p.sent,
            "memory_bytes": p.memory,
            "epoch_seconds": epoch.seconds(p),
            "epoch_cost": epoch.cost(p),
            "million_samples_cost": epoch.cost_of_a_million(p),
        }
        for p in predictions
    ]


def as_text(predictions: Sequence[Prediction], epoch: Epoch) -> list[str]:
    """The lines of a table. Strategies with the same figures share a line."""
    head = ["workers", "strategy", "options", "exact", "step", "samples/s", "efficiency"]
    head += ["sent/step", "memory"]
    head += ["epoch"] if epoch.samples is not None else []
    if epoch.price is not None:
        head += ["cost of a million"] if epoch.samples is None else ["cost"]
    merged: dict[tuple[str, ...], list[str]] = {}
    for p in predictions:
        cells = _cells(p, epoch)
        merged.setdefault(cells, []).append(p.candidate.strategy)
    rows = [[cells[0], ", ".join(names), *cells[1:]] for cells, names in merged.items()]
    return aligned([head, *rows], left=(1, 2, 3))


def _cells(prediction: Prediction, epoch: Epoch) -> tuple[str, ...]:
    p = prediction
    options = ", ".join(f"{name}={value}" for name, value in p.candidate.settings.items())
    cells = [
        str(p.workers),
        re.sub(r"tfdist\.([a-z]+\.)?", "", options),
        _exactness(p.candidate),
        duration(p.step),
        f"{float(f'{p.samples_per_second:.3g}'):,.0f}",
        f"{100 * p.efficiency:.0f} %",
        size(p.sent),
        size(p.memory),
    ]
    seconds = epoch.seconds(p)
    cost = epoch.cost_of_a_million(p) if seconds is None else epoch.cost(p)
    cells += [] if seconds is None else [duration(seconds)]
    cells += [] if cost is None else [money(cost)]
    return tuple(cells)


def _exactness(candidate: Candidate) -> str:
    """Whether the result is that of one device; else, where it was measured, what the loss was."""
    if candidate.is_exact:
        return "yes"
    loss = trained.loss(candidate)
    return "no" if loss is None else f"no, loss × {loss:.3f}"


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Lines whose columns are as wide as they need; those of `left` begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]


def duration(seconds: float) -> str:
    """Seconds for people."""
    for unit, name in ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s")):
        if seconds >= 2 * unit or (unit == 1.0 and seconds >= 1):
            return f"{seconds / unit:.3g} {name}"
    return f"{1e3 * seconds:.3g} ms"


def money(amount: float) -> str:
    """An amount for people: two decimals, or three digits of what is less than 1."""
    decimals = 2 if amount >= 1 or not amount else 2 - math.floor(math.log10(amount))
    return f"{amount:,.{decimals}f}"


def size(nbytes: float) -> str:
    """Bytes for people, in powers of ten."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes:.0f} B"
