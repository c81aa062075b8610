"""What each rank of timeline_clocks.py runs; rank 0 writes what was found."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import tfdist
from tfdist.callbacks.timeline import LARGEST_ERROR
from tfdist.engines.clocks import clocks_of


def main() -> None:
    """Writes the seconds that it took, and the offset and error of each rank but the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    strategy = tfdist.Strategy("auto")
    processes = strategy.processes
    processes.all_gather([0])  # so that nobody waits for a process that is still starting
    began = time.perf_counter()
    # A number for each rank, as if each had a machine, and so a clock, of its own.
    clocks = clocks_of(strategy.engine, LARGEST_ERROR, machine=os.getpid())
    seconds = time.perf_counter() - began
    if processes.is_chief:
        found = [[clock.offset_seconds, clock.error_seconds] for clock in clocks[1:]]
        arguments.path.write_text(json.dumps({"seconds": seconds, "clocks": found}))
    processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
