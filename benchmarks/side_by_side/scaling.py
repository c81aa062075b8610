"""How well systems use additional hosts: tables of weak and strong scaling."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable

from benchmarks.common import tables
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.runs import Group
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import WORKS


def sections(groups: list[Group], cores: int | None) -> list[str]:
    """All tables, with their text; nothing where no model ran on several numbers of hosts.

    Args:
        groups: the groups of all models.
        cores: the number of cores that the hosts share; None when each host is a machine.
    """
    lines = []
    for work, alone in dict.fromkeys((group.work, group.batch) for group in groups):
        found = [group for group in groups if group.work == work]
        weak = [group for group in found if group.batch == alone]
        strong = [group for group in found if group.batch == alone // group.hosts]
        title = WORKS[work].title
        if len(weak) > 1:
            lines += ["", f"## {title}, weak scaling", "", weak_text(alone)]
            lines += [shared_cores(weak, cores), "", *table(weak, found, alone)]
        if strong:
            lines += ["", f"## {title}, strong scaling", "", strong_text(strong, alone)]
            lines += [shared_cores(strong, cores), "", *table(strong, found, alone)]
    return lines


def weak_text(batch: int) -> str:
    """What the table of weak scaling shows."""
    return (
        f"{batch} samples per rank. Efficiency: the samples/s of N hosts by N times those of one "
        "device of the same framework with as many samples per step."
    )


def strong_text(groups: list[Group], alone: int) -> str:
    """What the table of strong scaling shows, and where the batch could not be shared evenly."""
    uneven = [group for group in groups if alone % group.hosts]
    notes = [f" ({g.hosts * g.batch} of them with {g.hosts} hosts)" for g in uneven]
    return (
        f"{alone} samples for all ranks together{''.join(notes)}. Efficiency: the samples/s of N "
        f"hosts by N times those of one device of the same framework with {alone} samples per step."
    )


def shared_cores(groups: list[Group], cores: int | None) -> str:
    """Which figures suffer because hosts share a core."""
    crowded = sorted(group.hosts for group in groups if cores and group.hosts > cores)
    if not crowded:
        return "Each host has a core of its own, as the one device has."
    counts = " and ".join(map(str, crowded))
    # The core with the most hosts decides, because all hosts wait for each other.
    bounds = " and ".join(f"{100 / -(-hosts // cores):.0f} %" for hosts in crowded if cores)
    return (
        f"This machine has {cores} cores: with {counts} hosts several hosts share a core, which "
        f"the one device does not. Computing alone would leave about {bounds} there."
    )


def table(scaled: list[Group], found: Iterable[Group], alone: int) -> list[str]:
    """Efficiencies by system and link.

    Args:
        scaled: the groups of the table.
        found: all groups of the model, including the runs on one device.
        alone: the samples per step of the runs on one device.
    """
    scaled = sorted(scaled, key=lambda group: group.hosts)
    floors = [group for group in found if group.batch == alone]
    head = ["system", "link", "one device, samples/s", *(f"{g.hosts} hosts" for g in scaled)]
    rows = []
    present = {name for group in scaled for name in group.systems if name not in group.errors}
    met = {rate for group in scaled for rate in group.rates}
    for name, rate in itertools.product(SYSTEMS, LINKS):
        if name not in present or rate not in met or SYSTEMS[name].single:
            continue
        single = [s for group in floors for s in group.seconds(SYSTEMS[name].floor, None)]
        if not single:
            continue
        speed = alone / statistics.median(single)
        row = [SYSTEMS[name].title, LINKS[rate][1], f"{speed:.0f}"]
        row += [_percent(efficiency(group, name, rate, speed)) for group in scaled]
        rows.append(row)
    return tables.table(head, rows, "ttn")


def efficiency(group: Group, name: str, rate: str, speed: float) -> float | None:
    """The samples/s of a system on N hosts divided by N times `speed`; None if it did not run."""
    seconds = group.seconds(name, rate)
    return group.batch / statistics.median(seconds) / speed if seconds else None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
