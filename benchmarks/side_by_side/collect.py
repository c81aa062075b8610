"""Makes results, tables and charts of what the ranks on your own hosts wrote.

Each folder holds the files N.json of all ranks of one launch. If the hosts share no file system,
copy these files together first. Launches of the same system and work become rounds. Each host must
have one rank, because the bytes of an interface are counted. On one of the hosts:

    python -m benchmarks.side_by_side.collect FOLDER... --rate 10gbit --out RESULTS.json
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import machine, options
from benchmarks.side_by_side import report, results
from benchmarks.side_by_side.merging import Report, merged
from benchmarks.side_by_side.results import Run
from benchmarks.side_by_side.rig import LINKS, UNLIMITED
from benchmarks.side_by_side.systems import SYSTEMS


def ranks(folder: Path) -> list[Report]:
    """What all ranks of a launch wrote.

    Raises:
        SystemExit: when files of some ranks are missing, or the ranks did not do the same.
    """
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    if not found or sorted(r["rank"] for r in found) != list(range(found[0]["ranks"])):
        wanted = found[0]["ranks"] if found else "some"
        sys.exit(f"{folder} has to have the N.json of {wanted} ranks; received: {len(found)}")
    same = {(r["system"], r["work"], r["batch"]) for r in found}
    if len(same) > 1:
        sys.exit(f"{folder} has ranks of several launches: {sorted(same)}")
    return found


def collected(launches: Sequence[Sequence[Report]], rate: str) -> list[Run]:
    """The runs for `runs.Group`.

    Args:
        launches: for each launch, what its ranks wrote.
        rate: the rate of the links. It does not count on loopback, which has no limit.
    """
    rounds: collections.Counter[tuple[Any, ...]] = collections.Counter()
    runs = []
    for reports in launches:
        first = reports[0]
        phases = len(first["phases"])
        loopback = first["interface"] == "lo" and len(reports) > 1
        rates = [UNLIMITED if loopback else rate] * phases
        found = merged(reports, rates, [[]] * phases, loopback)
        for hosts in _hosts(first, launches):
            place = {"system": first["system"], "work": first["work"], "hosts": hosts}
            place["batch"] = first["batch"]
            key = tuple(place.values())
            run = {"round": rounds[key], **place, **found}
            runs.append(run | {"loopback": "the ranks were started so" if loopback else ""})
            rounds[key] += 1
    return runs


def _hosts(report: Report, launches: Sequence[Sequence[Report]]) -> list[int]:
    """The numbers of hosts that a run belongs to; one device belongs to all of its work."""
    if not SYSTEMS[report["system"]].single:
        return [report["ranks"]]
    place = (report["work"], report["batch"])
    others = [r for r, *_ in launches if (r["work"], r["batch"]) == place]
    return sorted({r["ranks"] for r in others if not SYSTEMS[r["system"]].single}) or [1]


def content(runs: list[Run]) -> dict[str, Any]:
    """The content of the file of results."""
    found: dict[str, Any] = {"plan": "hosts of one's own", "machine": machine.facts()}
    found["own_hosts"] = not any(run["loopback"] for run in runs)
    found |= {"versions": {}, "runs": []}
    for run in runs:
        results.add_to(found, run)
    return found


def main() -> None:
    """Writes the results, and prints their tables."""
    parser = options.parser(__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--rate", choices=LINKS, default=UNLIMITED, help="of the hosts' links")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    runs = collected([ranks(folder) for folder in arguments.folders], arguments.rate)
    arguments.out.write_text(results.text(content(runs)))
    report.publish(arguments.out)


if __name__ == "__main__":
    main()
