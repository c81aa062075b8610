"""The goals of tfdist with the MLP on two hosts: ratios of its step times to those of peers."""

from __future__ import annotations

import itertools
import statistics

from benchmarks.common import tables
from benchmarks.side_by_side.rig import LINKS, UNLIMITED
from benchmarks.side_by_side.runs import Group
from benchmarks.side_by_side.systems import SYSTEMS

DENSE = ("tfdist-horovod", "tfdist-multi_worker")
# The links, the systems of tfdist, the peers, and the bound. Of each side the best system counts.
GOALS = [
    ("100mbit", "compressed", ("horovod",), 0.05),
    ("100mbit", "compressed", ("horovod-fp16",), 0.10),
    ("100mbit", "compressed", ("ddp-powersgd",), 1.0),
    ("1gbit", "compressed", ("horovod",), 0.35),
    ("1gbit", "compressed", ("ddp-powersgd",), 1.0),
    (UNLIMITED, "dense", ("horovod",), 1.0),
    ("1gbit", "dense", ("horovod", "mwms", "ddp"), 1.0),
    ("100mbit", "dense", ("horovod", "mwms", "ddp"), 1.0),
]
# The share of the ring's bound that a dense exchange should reach, and the links. On faster links
# the cores are the limit, because one machine stands for all hosts.
RING_SHARES = {"tfdist-horovod": 0.92, "tfdist-multi_worker": 0.80}
RING_LINKS = ("1gbit", "100mbit")


def table(group: Group) -> list[str]:
    """The goals that these runs can show; nothing for another model."""
    if (group.work, group.hosts) != ("mlp", 2):
        return []
    rows = []
    for rate, kind, peers, bound in GOALS:
        names = [name for name in group.systems if name.startswith("tfdist")]
        ours = best(group, [n for n in names if (n in DENSE) == (kind == "dense")], rate)
        theirs = best(group, list(peers), rate)
        if not ours or not theirs:
            continue
        ratios = group.ratio(ours, theirs, rate)
        ratio = statistics.median(ratios)
        row = [LINKS[rate][1], SYSTEMS[ours].title, SYSTEMS[theirs].title, f"≤ {bound:g}"]
        rows.append([*row, tables.with_range(ratios, ".3f"), "yes" if ratio <= bound else "no"])
    return tables.table(["link", "tfdist", "peer", "goal", "ratio", "reached"], rows, "tttnnt")


def ring_table(group: Group) -> list[str]:
    """The shares of the ring's bound that are goals; nothing for another model."""
    if (group.work, group.hosts) != ("mlp", 2):
        return []
    rows = []
    for rate, (name, bound) in itertools.product(RING_LINKS, RING_SHARES.items()):
        share = group.ring_share(name, rate) if group.seconds(name, rate) else None
        if share is not None:
            row = [LINKS[rate][1], SYSTEMS[name].title, f"≥ {100 * bound:.0f} %"]
            rows.append([*row, f"{100 * share:.1f} %", "yes" if share >= bound else "no"])
    head = ["link", "tfdist", "goal", "share of the ring bound", "reached"]
    return tables.table(head, rows, "ttnnt")


def best(group: Group, names: list[str], rate: str) -> str | None:
    """The fastest of these systems; None when none of them ran."""
    ran = [name for name in names if group.seconds(name, rate)]
    return min(ran, key=lambda n: statistics.median(group.seconds(n, rate)), default=None)
