"""Starts a training script on a Ray cluster, as it is: one process for each worker.

    python examples/ray_train.py --workers 2 --restarts 3 train.py --epochs 10

With docs/other_packages.md. Needs `pip install 'ray[train]'`. The script makes
`tfdist.Strategy("auto")`, as Ray sets TF_CONFIG. Where Ray starts the workers again, a
`BackupAndRestore` callback of the script goes on from its last backup; all machines must see the
folder of the backup.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer


def run_script(config: dict[str, Any]) -> None:
    """What each worker runs."""
    sys.argv = [config["script"], *config["arguments"]]
    runpy.run_path(config["script"], run_name="__main__")


def main() -> None:
    """Joins the cluster that RAY_ADDRESS names, or starts one on this machine, and trains."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--restarts", type=int, default=3, help="how often all workers start again")
    parser.add_argument("--storage", type=Path, default=Path("ray"), help="folder for Ray's files")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    ray.init()
    TensorflowTrainer(
        run_script,
        train_loop_config={"script": str(given.script.resolve()), "arguments": given.arguments},
        scaling_config=ScalingConfig(num_workers=given.workers),
        run_config=RunConfig(
            storage_path=str(given.storage.resolve()),
            failure_config=FailureConfig(max_failures=given.restarts),
        ),
    ).fit()


if __name__ == "__main__":
    main()
