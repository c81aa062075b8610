"""What each process of a job of largest_model.py runs; rank 0 writes that the training ended."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.common import memory_groups


def parse_arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--group", type=Path, required=True)
    parser.add_argument("--limit", type=int, required=True)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--sharding", required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    return parser.parse_args()


def main() -> None:
    """Trains for a few steps within the limit."""
    arguments = parse_arguments()
    memory_groups.join(arguments.group, arguments.limit)
    # Imported only now, as the limit is also for TensorFlow.
    import tfdist
    from benchmarks.sharding_ranks import batches, model_of
    from tfdist import control_groups

    limit = control_groups.memory_limit()
    if limit is None or limit > arguments.limit:
        raise RuntimeError(f"The limit of memory is {limit}, not {arguments.limit}.")
    sharding = None if arguments.sharding == "none" else arguments.sharding
    strategy = tfdist.Strategy(arguments.strategy, sharding=sharding)
    model = model_of(strategy, arguments.layers, arguments.width)
    model.fit(batches(arguments.width), steps_per_epoch=arguments.steps, verbose=0)
    if strategy.processes.is_chief:
        arguments.path.write_text(json.dumps({"parameters": model.count_params()}))


if __name__ == "__main__":
    main()
