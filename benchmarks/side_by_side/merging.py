"""Merges what the ranks of a launch found."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

# What a rank wrote.
Report = dict[str, Any]


def merged(
    reports: Sequence[Report], rates: Sequence[str], links: Sequence[list[float]], shared: bool
) -> dict[str, Any]:
    """One entry for all ranks: a step takes as long as on the slowest rank.

    Args:
        reports: the reports of all ranks.
        rates: the rate of the links in each phase.
        links: the measured speeds of the links in each phase.
        shared: whether all ranks have one interface, which counts what all of them send.
    """
    phases = []
    for rate, carried, *found in zip(rates, links, *(rank["phases"] for rank in reports)):
        sent = statistics.mean(phase["bytes"] for phase in found)
        steps = zip(*(phase["seconds"] for phase in found))
        phases.append(
            {
                "rate": rate,
                "links": carried,
                "seconds": [max(step) for step in steps],
                "bytes": sent / len(reports) if shared else sent,
            }
        )
    return {
        "phases": phases,
        "losses": [statistics.mean(step) for step in zip(*(r["losses"] for r in reports))],
        "peak_bytes": max(rank["peak_bytes"] for rank in reports),
        "versions": reports[0]["versions"],
        "parameters": reports[0]["parameters"],
    }
