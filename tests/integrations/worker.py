"""Trains with other packages under one strategy; each rank writes what came out.

python -m tests.integrations.worker FOLDER SYSTEM
"""

import pathlib
import sys
import traceback

import numpy as np

import tfdist
from tests.integrations.features import FEATURES


def strategy_of(system):
    """The strategy of a system; None for one device, without tfdist."""
    if system == "one device":
        return None
    if system == "mirrored":
        return tfdist.Strategy("mirrored", devices=tfdist.testing.virtual_devices(2))
    if system == "parameter_server":
        return tfdist.Strategy("parameter_server", staleness=tfdist.staleness.Synchronous())
    return tfdist.Strategy(system)


def main(folder, system):
    """Trains all features; what fails is written down."""
    strategy = strategy_of(system)
    rank = 0 if strategy is None else strategy.processes.rank
    for name, train in FEATURES.items():
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        try:
            np.savez(folder / f"{name} {rank}.npz", *train(strategy, own))
        except Exception:
            (folder / f"{name} {rank}.txt").write_text(traceback.format_exc())
            raise


main(pathlib.Path(sys.argv[1]), sys.argv[2])
