"""The steps of one system on links of several speeds.

One device without any communication is measured with the same contention: on each host, and so at
the same time on the same cores, a process trains by itself and talks to nobody.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.local_sgd import plan
from benchmarks.side_by_side.launch import Failed, Phase, launch
from benchmarks.side_by_side.merging import Report
from benchmarks.side_by_side.rig import UNLIMITED, rig

# Results of another way of measuring do not go into the same tables.
METHOD = "the second half of the steps on each link, with CUBIC"


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the hosts of one system find, as `summed`.

    Args:
        name: of the system.
        arguments: of the command line.

    Raises:
        RuntimeError: when a rank fails or takes too long; the message has what it has printed.
    """
    steps = {rate: plan.timed_steps(name, rate, arguments.steps) for rate in arguments.rates}
    # The first round counts nowhere: in it much happens for the first time.
    phases = [Phase(UNLIMITED, plan.every(name))]
    phases += [Phase(rate, 2 * count) for rate, count in steps.items() if count]
    links: list[list[float]] = []
    with rig(plan.HOSTS) as hosts:
        place = (plan.WORK, plan.BATCH, hosts, phases)
        try:
            reports = launch(name, *place, arguments.peers, links.append)
        except Failed as failure:
            raise RuntimeError(str(failure)) from failure
    return summed(reports, phases, links)


def summed(
    reports: Sequence[Report], phases: Sequence[Phase], links: Sequence[list[float]]
) -> dict[str, Any]:
    """The mean of the steps of all hosts on each link but the first, in the second half of a phase.

    In the first half TCP and the processes' questions to each other adapt to the new link.

    It is no median: an exchange in one step of many counts with all that it takes. And it is not
    the slowest host in each step: between two exchanges the hosts do not wait for each other.

    Args:
        reports: of all hosts.
        phases: the first one does not count.
        links: the measured speeds of the links in each phase.
    """
    found: dict[str, Any] = {}
    for number, phase in list(enumerate(phases))[1:]:
        of_hosts = [report["phases"][number] for report in reports]
        found[phase.rate] = {
            "seconds": statistics.mean(_of_second_half(host["seconds"]) for host in of_hosts),
            "bytes": statistics.mean(host["bytes"] for host in of_hosts),
            "links": [round(carried) for carried in links[number]],
        }
    first = reports[0]
    return {"rates": found, "versions": first["versions"], "parameters": first["parameters"]}


def _of_second_half(seconds: Sequence[float]) -> float:
    return statistics.mean(seconds[len(seconds) // 2 :])
