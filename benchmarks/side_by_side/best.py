"""On each link, the fastest system of tfdist beside the fastest peer."""

from __future__ import annotations

import statistics

from benchmarks.common import tables
from benchmarks.side_by_side.goals import best
from benchmarks.side_by_side.rig import LINKS
from benchmarks.side_by_side.runs import Group
from benchmarks.side_by_side.systems import SYSTEMS

HEAD = [
    "link",
    "tfdist",
    "ms",
    "peer",
    "ms",
    "ratio",
    "tfdist adds, ms",
    "peer adds, ms",
    "reached",
]


def table(group: Group) -> list[str]:
    """The lines of the table; nothing without a system or a floor on one of the sides."""
    training = [n for n in group.systems if SYSTEMS[n].trains and SYSTEMS[n].exchanges]
    ours = [name for name in training if name.startswith("tfdist")]
    theirs = [name for name in training if name not in ours]
    rows = []
    for rate in group.rates:
        own, peer = best(group, ours, rate), best(group, theirs, rate)
        if own is None or peer is None:
            continue
        added = {name: _added(group, name, rate) for name in (own, peer)}
        ratios = group.ratio(own, peer, rate)
        if not ratios or not all(added.values()):
            continue
        row = [LINKS[rate].title]
        for name in (own, peer):
            milliseconds = 1000 * statistics.median(group.seconds(name, rate))
            row += [SYSTEMS[name].title, f"{milliseconds:.0f}"]
        row.append(tables.with_interval(ratios, ".2f"))
        row += [tables.with_interval([1000 * a for a in added[n]], ".0f") for n in (own, peer)]
        rows.append([*row, _reached(group, own, peer, ratios, added)])
    return tables.table(HEAD, rows, "ttntnnnnt")


def _added(group: Group, name: str, rate: str) -> list[float]:
    """The seconds that a step takes longer than on one device, in each round with both."""
    floor = SYSTEMS[name].floor
    assert floor is not None
    found = []
    for number in range(group.rounds):
        seconds, alone = group.seconds(name, rate, number), group.seconds(floor, None, number)
        if seconds and alone:
            found.append(statistics.median(seconds) - statistics.median(alone))
    return found


def _reached(
    group: Group, own: str, peer: str, ratios: list[float], added: dict[str, list[float]]
) -> str:
    """Whether tfdist is no slower; where Keras alone is slower than the peer, if it adds less."""
    if statistics.median(ratios) <= 1:
        return "yes"
    alone = [statistics.median(group.seconds(SYSTEMS[n].floor or "", None)) for n in (own, peer)]
    less = statistics.median(added[own]) <= statistics.median(added[peer])
    return "yes, adds less" if alone[0] > alone[1] and less else "no"
