"""How soon systems reach a loss: the number of steps, and their time on each link."""

from __future__ import annotations

import statistics

from benchmarks.common import tables
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.runs import SMOOTHING, Group
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import WORKS

# The allowed cost of compression: steps to the loss, divided by the steps without compression.
MORE_STEPS = 1.1


def text(group: Group) -> str:
    """How the figures of `table` were measured."""
    return (
        f"The loss is the mean over ranks and over {SMOOTHING} steps. Steps were counted on the "
        "fastest link only. A time is a product: these steps by the median step of the system on "
        "that link, where a few were timed; training was not repeated there."
    )


def table(group: Group) -> list[str]:
    """Steps to the target loss, and their seconds; nothing without a target."""
    target = WORKS[group.work].target
    if target is None:
        return []
    head = ["system", f"steps to a loss of {target:g}"]
    head += [f"{LINKS[rate][1]}, s" for rate in group.rates]
    rows = []
    for name in group.systems:
        if name in group.errors:
            continue
        steps = group.steps_to(name, target)
        row = [SYSTEMS[name].title, "not reached" if steps is None else str(steps)]
        for rate in group.rates:
            seconds = group.seconds(name, rate)
            known = steps is not None and seconds
            row.append(f"{steps * statistics.median(seconds):.1f}" if known else "–")
        rows.append(row)
    return tables.table(head, rows)


def goals(group: Group) -> list[str]:
    """Whether each of tfdist's compressed exchanges takes about as many steps as its dense one.

    Nothing without a target, or where the dense exchange did not reach it.
    """
    target = WORKS[group.work].target
    if target is None:
        return []
    rows = []
    for name in group.systems:
        system = SYSTEMS[name]
        if not system.options.get("compression") or name in group.errors:
            continue
        dense = f"tfdist-{system.options['strategy']}"
        if dense not in group.systems or dense in group.errors:
            continue
        base, steps = group.steps_to(dense, target), group.steps_to(name, target)
        if base is None:
            continue
        ratio = "not reached" if steps is None else f"{steps / base:.2f}"
        reached = steps is not None and steps <= MORE_STEPS * base
        row = [system.title, SYSTEMS[dense].title, f"≤ {MORE_STEPS:g}", ratio]
        rows.append([*row, "yes" if reached else "no"])
    return tables.table(["compressed", "dense", "goal", "steps, ratio", "reached"], rows, "ttnnt")
