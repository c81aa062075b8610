"""Runs benchmark scripts as their users do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(module: str, *options: str, launcher: tuple[str, ...] = ()) -> str:
    """What `python -m benchmarks.MODULE` prints."""
    command = [sys.executable, *launcher, "-m", f"benchmarks.{module}", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def between(page: Path, markers: str) -> str:
    """What `page` has between its markers, and that it has the rest as before."""
    before, _, rest = page.read_text().partition(f"<!-- {markers}:begin -->\n")
    text, _, after = rest.partition(f"<!-- {markers}:end -->")
    assert (before, after) == ("before\n", "\nafter\n")
    return text
