"""Divides tests among runs, so that several runs together run each of them once."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Hashable, Sequence

from tests import tiers

# Rough seconds of a test of each tier.
COST = {"pure": 0.1, "graph": 1.0, "job": 2.0, "page": 8.0, "bench": 10.0}


def parse(text: str) -> tuple[int, int]:
    """The two numbers of a shard such as "2/6": which one, and of how many.

    Raises:
        ValueError: when it is none.
    """
    numbers = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not numbers or int(numbers[1]) > int(numbers[2]):
        raise ValueError(f"A shard is i/n with 1 <= i <= n, such as 2/6. Received: {text}")
    return int(numbers[1]), int(numbers[2])


def unit_of(item) -> str:
    """What is not divided: tests of one file, or those that share something costly.

    Of tests in several files that start one job, the mark `xdist_group` says so. The equivalence
    tests of a feature compare with one training on one device; all of them together are too many.
    """
    group = item.get_closest_marker("xdist_group")
    if group:
        return str(group.kwargs.get("name") or group.args[0])
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    feature = getattr(parameters.get("feature"), "name", "")
    return f"{item.path.relative_to(tiers.ROOT).as_posix()} {feature}"


def places(units: Sequence[str], costs: Sequence[float], count: int) -> list[int]:
    """In which of `count` shards, from 0, each test is.

    The units come in the order of their hashes, so a new one moves only few others; the shards are
    equally long stretches of that order.

    Args:
        units: of each test.
        costs: of each test.
        count: of shards.
    """
    total: dict[Hashable, float] = {}
    for unit, cost in zip(units, costs):
        total[unit] = total.get(unit, 0.0) + cost
    order = sorted(total, key=lambda unit: hashlib.sha256(str(unit).encode()).digest())
    ends = itertools.accumulate(total[unit] for unit in order)
    whole = sum(costs)
    # Each unit is where its middle lies.
    place = {
        unit: min(int((end - total[unit] / 2) * count / whole), count - 1)
        for unit, end in zip(order, ends)
    }
    return [place[unit] for unit in units]
