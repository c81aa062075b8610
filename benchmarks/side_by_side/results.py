"""The file of results, which grows with each launch and from which measuring can go on."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Run = dict[str, Any]

# By which a launch is known again.
KEY = ("round", "system", "work", "hosts", "batch")

# Vector instructions, the widest first, as Linux calls them. How fast TensorFlow multiplies depends
# on them, and processors of the same name differ.
VECTORS = ("avx512f", "avx2", "avx")


def machine() -> dict[str, Any]:
    """What step times depend on here, apart from the systems' versions."""
    processor = Path("/proc/cpuinfo").read_text()
    named = re.search(r"^model name\s*: (.*)$", processor, re.M)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "processor": named[1] if named else "unknown processor",
        "vectors": next((name for name in VECTORS if name in processor.split()), ""),
    }


class Results:
    """The runs of a plan.

    Args:
        path: of the JSON file.
        plan: its name.
        steps: that are timed, by the rate of the links.
        resume: go on with the file, if there is one, in place of a new one.
    """

    def __init__(self, path: Path, plan: str, steps: Mapping[str, int], resume: bool):
        self._path = path
        same = {"plan": plan, "steps": dict(steps), "machine": machine()}
        self._content: dict[str, Any] = {**same, "runs": []}
        if resume and path.exists():
            found = json.loads(path.read_text())
            if others := {key: found.get(key) for key in same if found.get(key) != same[key]}:
                sys.exit(f"{path} is of another plan or machine. Received: {others}")
            self._content = found
        path.parent.mkdir(parents=True, exist_ok=True)

    def needs(self, run: Run) -> bool:
        """Whether this launch is missing; a system that failed once is not tried again.

        Args:
            run: with the entries of `KEY` at least.
        """
        same = [r for r in self._content["runs"] if all(r[key] == run[key] for key in KEY[1:])]
        return not any("error" in r or r["round"] == run["round"] for r in same)

    def add(self, run: Run) -> None:
        """Keeps a run. The file is whole at any time, so it survives a power cut or Ctrl-C."""
        self._content["runs"].append(run)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(self._content, indent=1))
        partial.replace(self._path)
