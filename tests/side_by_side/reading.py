"""What of a file of results its page is made of."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import report
from benchmarks.side_by_side.rig import UNLIMITED
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import WORKS

# What all launches of a group have in common is read in one of them, which may be any.
OF_GROUP = {"loopback", "parameters"}


class Noting(dict):
    """Notes which of its entries are read."""

    def __init__(self, content: dict[str, Any]):
        super().__init__(content)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


def unread(path: Path) -> list[str]:
    """The entries that no table reads, of any launch of the same kind."""
    result = json.loads(path.read_text(), object_hook=Noting)
    report.page(result, None)
    alike: dict[tuple, list[Noting]] = collections.defaultdict(list)
    for run in result["runs"]:
        single, target = SYSTEMS[run["system"]].single, WORKS[run["work"]].target is not None
        alike["launch", single, target, "error" in run].append(run)
        for phase in dict.get(run, "phases", []):
            alike["phase", single, phase["rate"] == UNLIMITED].append(phase)
    found = []
    for kind, entries in alike.items():
        read = set().union(*(entry.read for entry in entries))
        found += [f"{kind}: {key}" for key in sorted(set().union(*entries) - read - OF_GROUP)]
    return found
