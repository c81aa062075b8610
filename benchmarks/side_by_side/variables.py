"""Whether the time of an exchange depends on the number of variables of a model.

The time of an exchange is what a step takes longer than a step on one device. But one device
updates a variable as soon as its gradient is computed; with an exchange no system can do so. So a
part of the additional time has another reason. A device that updates late shows this part.
"""

from __future__ import annotations

import itertools
import statistics

from benchmarks.common import tables
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.runs import Group
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import IN_VARIABLES, VARIABLES

# For tfdist: what a step with many variables may add, divided by what a step with few adds.
BOUND = 1.1
# One device without an exchange that updates as late as after an exchange.
LATE = "keras-late"


def section(groups: list[Group]) -> list[str]:
    """Tables with their text; nothing unless models with few and with many variables ran."""
    by_work = {group.work: group for group in groups}
    few, many = (by_work.get(f"variables-{count}") for count in VARIABLES)
    if few is None or many is None:
        return []
    names = [name for name in SYSTEMS if not SYSTEMS[name].single]
    lines = _table(few, many, {name: SYSTEMS[name].floor for name in names})
    if not lines:
        return []
    text = [
        "",
        "## Number of variables",
        "",
        f"{IN_VARIABLES / 1e6:g} M parameters in {VARIABLES[0]} or {VARIABLES[1]} variables. What "
        "a step adds to the step of one device of the same framework and model: medians over "
        "rounds, and of their ratios, with the lowest and the highest.",
        "",
        *lines,
    ]
    late = [overheads(group, LATE, None, SYSTEMS[LATE].floor) for group in (few, many)]
    if not all(late):
        return text
    added = [_milliseconds(found) for found in late]
    same = [name for name in names if SYSTEMS[name].floor == SYSTEMS[LATE].floor]
    return [
        *text,
        "",
        "The same, added to the step of one device that updates no variable before the gradients "
        "of all are there, as after an exchange. Without any exchange, that alone adds "
        f"{added[0]} ms with {VARIABLES[0]} variables and {added[1]} ms with {VARIABLES[1]}.",
        "",
        *_table(few, many, dict.fromkeys(same, LATE)),
    ]


def overheads(group: Group, name: str, rate: str | None, floor: str | None) -> dict[int, float]:
    """By round, the seconds by which a step is longer than on one device, the system `floor`."""
    found = {}
    for number in range(group.rounds):
        own = group.seconds(name, rate, number)
        alone = group.seconds(floor, None, number) if floor else []
        if own and alone:
            found[number] = statistics.median(own) - statistics.median(alone)
    return found


def _milliseconds(seconds: dict[int, float]) -> str:
    return f"{1000 * statistics.median(seconds.values()):.1f}"


def _table(few: Group, many: Group, floors: dict[str, str | None]) -> list[str]:
    """A line for each system and link; nothing if there are none."""
    rows = [
        row
        for name, rate in itertools.product(floors, few.rates)
        if (row := _row(name, rate, few, many, floors[name]))
    ]
    head = ["system", "link", *(f"{count} variables, ms" for count in VARIABLES)]
    head += ["ratio", "goal", "reached"]
    return tables.table(head, rows, "ttnnnnt")


def _row(name: str, rate: str, few: Group, many: Group, floor: str | None) -> list[str] | None:
    """The cells of one system on such links, if it ran. Systems of tfdist have a goal."""
    small, large = (overheads(group, name, rate, floor) for group in (few, many))
    ratios = [large[number] / small[number] for number in small.keys() & large.keys()]
    if not ratios:
        return None
    cells = [SYSTEMS[name].title, LINKS[rate][1]]
    cells += [_milliseconds(found) for found in (small, large)]
    cells.append(tables.with_range(ratios, ".2f"))
    if name.startswith("tfdist"):
        cells += [f"≤ {BOUND:g}", "yes" if statistics.median(ratios) <= BOUND else "no"]
    else:
        cells += ["–", "–"]
    return cells
