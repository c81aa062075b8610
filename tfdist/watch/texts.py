"""Numbers with units, as short texts."""

from __future__ import annotations


def short(milliseconds: float) -> str:
    """Milliseconds for a cell of a table, without the unit."""
    return f"{milliseconds:.2f}" if milliseconds < 99 else f"{milliseconds:.0f}"


def milliseconds(seconds: float) -> str:
    """A short time."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 10 else f"{seconds:.3g} s"


def duration(seconds: float) -> str:
    """A long time."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s"


def size(count: float) -> str:
    """A number of bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
