"""The file of results. It grows with each launch, and an interrupted benchmark can go on with it.

The file holds only what the tables and charts read. Each launch is one line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from benchmarks.side_by_side.launch import reason
from benchmarks.side_by_side.rig import LINKS, UNLIMITED
from benchmarks.side_by_side.systems import SYSTEMS
from benchmarks.side_by_side.work import WORKS

Run = dict[str, Any]

# The entries by which a launch is recognized.
KEY = ("round", "system", "work", "hosts", "batch")
# Significant digits of seconds and of losses. With one digit less, seconds in the pages would
# change.
SECONDS, LOSSES = 7, 5


def kept(run: Run) -> Run:
    """What tables and charts read of a launch.

    Losses are kept only if there is a target loss. The measured speeds of links and the bytes sent
    are kept only if there were links. Of an error, only the line that says what went wrong is kept.
    """
    run = dict(run)
    if "error" in run:
        run["error"] = reason(run["error"])
    if "phases" in run:
        run["phases"] = _phases(run["phases"], SYSTEMS[run["system"]].exchanges)
    if not SYSTEMS[run["system"]].exchanges:
        run.pop("peak_bytes", None)
    if "took" in run:
        run["took"] = round(run["took"], 1)
    losses = run.pop("losses", [])
    if WORKS[run["work"]].target is not None:
        run["losses"] = _rounded(losses, LOSSES)
    return run


def _rounded(values: list[float], digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _phases(phases: list[Run], exchanges: bool) -> list[Run]:
    limited = any(LINKS[phase["rate"]][0] < LINKS[UNLIMITED][0] for phase in phases)
    found = []
    for phase in phases:
        own = {"rate": phase["rate"], "seconds": _rounded(phase["seconds"], SECONDS)}
        if exchanges and phase["rate"] != UNLIMITED:
            own["links"] = [round(carried) for carried in phase["links"]]
        if exchanges and (phase["rate"] != UNLIMITED or not limited):
            own["bytes"] = round(phase["bytes"])
        found.append(own)
    return found


def text(content: Mapping[str, Any]) -> str:
    """The text of a file of results: one line for each run, so its history shows new runs."""
    lines = [json.dumps(run, separators=(",", ":")) for run in content["runs"]]
    head = json.dumps({name: value for name, value in content.items() if name != "runs"})
    return f'{head[:-1]}, "runs": [\n' + ",\n".join(lines) + "\n]}\n"


class Results:
    """The runs of a plan.

    Args:
        path: the path of the JSON file.
        plan: the name of the plan.
        steps: the number of timed steps, by the rate of the links.
        resume: go on with an existing file instead of beginning a new one.
    """

    def __init__(self, path: Path, plan: str, steps: Mapping[str, int], resume: bool):
        self._path = path
        same = {"plan": plan, "steps": dict(steps), "machine": machine.facts()}
        self._content: dict[str, Any] = {**same, "versions": {}, "runs": []}
        if resume and path.exists():
            found = json.loads(path.read_text())
            if others := {key: found.get(key) for key in same if found.get(key) != same[key]}:
                sys.exit(f"{path} is of another plan or machine. Received: {others}")
            self._content = found
        path.parent.mkdir(parents=True, exist_ok=True)

    def needs(self, run: Run) -> bool:
        """Whether this launch is missing. A system that failed once is not tried again.

        Args:
            run: at least the entries of `KEY`.
        """
        same = [r for r in self._content["runs"] if all(r[key] == run[key] for key in KEY[1:])]
        return not any("error" in r or r["round"] == run["round"] for r in same)

    def add(self, run: Run) -> None:
        """Keeps a run. The file is complete at any time, even after a power cut or Ctrl-C."""
        add_to(self._content, run)
        partial = self._path.with_suffix(".partial")
        partial.write_text(text(self._content))
        partial.replace(self._path)


def add_to(content: dict[str, Any], run: Run) -> None:
    """Adds what is kept of a run to a file's content. The versions of all runs are put together."""
    run = kept(run)
    content["versions"] |= run.pop("versions", {})
    content["runs"].append(run)
