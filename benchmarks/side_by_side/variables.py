"""Whether what a step adds to computing depends on the number of variables of a model."""

from __future__ import annotations

import itertools
import statistics

from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.runs import Group
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import IN_VARIABLES, VARIABLES

# Of tfdist, what many variables may add, by what few add.
BOUND = 1.1


def section(groups: list[Group]) -> list[str]:
    """A table with its text; nothing unless models with few and with many variables ran."""
    by_work = {group.work: group for group in groups}
    few, many = (by_work.get(f"variables-{count}") for count in VARIABLES)
    if few is None or many is None:
        return []
    rows = [
        row
        for name, rate in itertools.product(SYSTEMS, few.rates)
        if not SYSTEMS[name].single and (row := _row(name, rate, few, many))
    ]
    if not rows:
        return []
    head = ["system", "link", *(f"{count} variables, ms" for count in VARIABLES)]
    head += ["ratio", "goal", "reached"]
    return [
        "",
        "## Number of variables",
        "",
        f"{IN_VARIABLES / 1e6:g} M parameters in {VARIABLES[0]} or {VARIABLES[1]} variables. What "
        "a step adds to the step of one device of the same framework and model: medians over "
        "rounds, and of their ratios, with the lowest and the highest.",
        "",
        f"| {' | '.join(head)} |",
        "|---|---|---:|---:|---:|---:|---|",
        *rows,
    ]


def overheads(group: Group, name: str, rate: str) -> dict[int, float]:
    """By round, the seconds that a step adds to that of one device."""
    found = {}
    for number in range(group.rounds):
        own = group.seconds(name, rate, number)
        alone = group.seconds(SYSTEMS[name].floor, None, number)
        if own and alone:
            found[number] = statistics.median(own) - statistics.median(alone)
    return found


def _row(name: str, rate: str, few: Group, many: Group) -> str | None:
    """The line of one system on such links, if there is one; tfdist's have a goal."""
    small, large = overheads(few, name, rate), overheads(many, name, rate)
    ratios = [large[number] / small[number] for number in small.keys() & large.keys()]
    if not ratios:
        return None
    ratio = statistics.median(ratios)
    cells = [SYSTEMS[name].title, LINKS[rate][1]]
    cells += [f"{1000 * statistics.median(found.values()):.1f}" for found in (small, large)]
    cells.append(f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
    if name.startswith("tfdist"):
        cells += [f"≤ {BOUND:g}", "yes" if ratio <= BOUND else "no"]
    else:
        cells += ["–", "–"]
    return f"| {' | '.join(cells)} |"
