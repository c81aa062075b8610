"""What each rank of watching.py runs; rank 0 writes what was measured."""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

import tensorflow as tf

import tfdist
from benchmarks.common.runner import in_turn
from benchmarks.step_overhead_cell import InFit, compare_epoch_ends, time_calls

WARM_UP_CALLS = 30


def warmed_up(
    strategy: tf.distribute.Strategy, cell: argparse.Namespace, folder: str
) -> dict[str, InFit]:
    """Steps without and with a report, by the names "fit" and "watched", which are traced.

    Those without are traced before the others are made: from then on the strategy wants clocks in
    every step that it traces.

    Args:
        strategy: the strategy of both.
        cell: as for `InFit`.
        folder: as for `InFit`.
    """
    fits: dict[str, InFit] = {}
    for name in ("fit", "watched"):
        fits[name] = InFit(strategy, name, cell, folder)
        time_calls(fits[name], WARM_UP_CALLS)
    return fits


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
    fits = warmed_up(strategy, cell, str(cell.path.parent))
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
