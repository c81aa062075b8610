"""What each rank of watching.py runs; rank 0 writes what was measured."""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

import tfdist
from benchmarks.common.runner import in_turn
from benchmarks.step_overhead_cell import InFit, compare_epoch_ends, time_calls

WARM_UP_CALLS = 30


def main() -> None:
    """Trains with and without a report in turn; all ranks make the same steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--variables", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of each round")
    cell = parser.parse_args()
    cell.steps_per_execution, cell.optimizer, cell.dynamic = 1, "sgd", False
    strategy = tfdist.Strategy("auto")
    folder = str(cell.path.parent)
    fits = {name: InFit(strategy, name, cell, folder) for name in ("fit", "watched")}
    for fit in fits.values():
        time_calls(fit, WARM_UP_CALLS)
    gc.collect()
    gc.disable()
    steps: dict[str, list[float]] = {name: [] for name in fits}
    for _, name in in_turn(list(fits), cell.rounds):
        steps[name].append(time_calls(fits[name], cell.steps))
    ends = compare_epoch_ends(fits)
    if strategy.processes.is_chief:
        cell.path.write_text(json.dumps({"steps": steps, "epoch_ends": ends}))
    strategy.processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
