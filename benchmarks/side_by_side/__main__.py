"""Trains the same models with tfdist and its peers, on links of several speeds, in turn.

The hosts are network namespaces of this machine, each with a core of its own if there are enough
cores. A round launches every system once, forwards and backwards in turn (ABBA). A launch measures
all links, one after the other. Before each measurement the links' speed is checked. Namespaces need
root; without root the benchmark measures over loopback, and says so. The peers come from
`install_peers.py`.

    python -m benchmarks.side_by_side quick                # as `make bench`
    python -m benchmarks.side_by_side models --resume      # goes on with what was measured
    python -m benchmarks.side_by_side quick --systems horovod ddp --rates 1gbit --rounds 1

On your own hosts, `tc` and namespaces are not needed. Start each system's script with the launcher
of that system, once on each host. `collect.py` then makes tables of what the ranks wrote. The
number of threads is what OMP_NUM_THREADS and TF_NUM_INTRAOP_THREADS say; here it is 1 for all.

    horovodrun -np 2 -H a:1,b:1 python -m benchmarks.side_by_side.run_tfdist FOLDER \\
        --system tfdist-horovod --work mlp --batch 64 --phases 20 --interface eth0
    TF_CONFIG=... python -m benchmarks.side_by_side.run_tfdist FOLDER \\
        --system tfdist-multi_worker --work mlp --batch 64 --phases 20
    torchrun --nnodes 2 --node-rank ... -m benchmarks.side_by_side.run_torch FOLDER \\
        --system ddp --work mlp --batch 64 --phases 20
    python -m benchmarks.side_by_side.collect FOLDER... --rate 10gbit --out RESULTS.json

The results are one JSON file, from which the tables and charts beside it are made:

    python -m benchmarks.side_by_side.report benchmarks/results/side_by_side-quick.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import options
from benchmarks.common.runner import order
from benchmarks.side_by_side import plans, report
from benchmarks.side_by_side.launch import Failed, Phase, launch
from benchmarks.side_by_side.merging import merged
from benchmarks.side_by_side.results import Results
from benchmarks.side_by_side.rig import LINKS, ROOT, describe, rig
from benchmarks.side_by_side.systems import COMPARED, SYSTEMS

RESULTS = ROOT / "benchmarks" / "results"


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("plan", choices=plans.PLANS)
    parser.add_argument("--systems", nargs="+", choices=COMPARED, help="others than the plan's")
    parser.add_argument("--works", nargs="+", help="some of the plan's")
    parser.add_argument("--rates", nargs="+", choices=LINKS, help="some of the plan's")
    parser.add_argument("--rounds", type=int, help="others than the plan's")
    parser.add_argument("--peers", default=str(ROOT / ".venv-peers"), help="their environments")
    parser.add_argument("--resume", action="store_true", help="measure what the results lack")
    parser.add_argument("--out", type=Path, help=f"default: {RESULTS.relative_to(ROOT)}/...json")
    return parser.parse_args()


def run(cell: plans.Cell, name: str, steps: Mapping[str, int], peers: str) -> dict[str, Any]:
    """One launch of one system; `steps` has the number of timed steps by the rate of the links."""
    system = SYSTEMS[name]
    entry: dict[str, Any] = {}
    links: list[list[float]] = []
    with rig(1 if system.single else cell.hosts) as hosts:
        entry["loopback"] = hosts.reason
        possible = hosts.rates(cell.rates(name, steps))
        phases = [Phase(rate, steps[rate]) for rate in possible]
        try:
            reports = launch(name, cell.work, cell.batch, hosts, phases, peers, links.append)
        except Failed as failure:
            return entry | {"error": str(failure)}
    return entry | merged(reports, possible, links, bool(hosts.reason))


def say(entry: dict[str, Any]) -> None:
    """Prints the result of one launch."""
    print(f"{entry['system']}, {entry['work']}, {entry['hosts']} hosts:", file=sys.stderr, end=" ")
    if "error" in entry:
        print(f"failed: {entry['error']}", file=sys.stderr, flush=True)
        return
    for phase in entry["phases"]:
        milliseconds = 1000 * statistics.median(phase["seconds"])
        link = f" (links: {describe(phase['links'])})" if phase["links"] else ""
        print(f"{phase['rate']} {milliseconds:.0f} ms{link}", file=sys.stderr, end="; ")
    print(file=sys.stderr, flush=True)


def main() -> None:
    """Measures, and writes the results after each launch."""
    arguments = parse_arguments()
    plan = plans.PLANS[arguments.plan]
    steps = {rate: plan.steps[rate] for rate in arguments.rates or plan.steps}
    path = arguments.out or RESULTS / f"side_by_side-{arguments.plan}.json"
    results = Results(path, arguments.plan, steps, arguments.resume)
    for number in range(arguments.rounds or plan.rounds):
        for cell in plan.cells:
            if arguments.works and cell.work not in arguments.works:
                continue
            names = list(arguments.systems or cell.systems)
            for name in order(names, number):
                entry = {"round": number, "system": name, **cell.place}
                if results.needs(entry):
                    begin = time.monotonic()
                    entry |= run(cell, name, steps, arguments.peers)
                    entry["took"] = time.monotonic() - begin
                    say(entry)
                    results.add(entry)
    report.publish(path)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Ended; no process or network namespace is left.")
