"""What each rank of test_all_reduce.py runs: sums by all schedules, compared with float64."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.algorithms_ranks import engine_of
from benchmarks.all_reduce.execution import Messages, ScheduledEngine
from tfdist.plan.algorithms import ALGORITHMS
from tfdist.step.exchange import all_reduce

# Fewer elements than ranks, no multiple of anything, and so many that they travel in pieces, of
# which some wait for others.
LENGTHS, PIECE_BYTES = (1, 3, 1001, 20_011), 4000


def vector_of(rank: int, length: int) -> tf.Tensor:
    """Positive, so that errors relative to the sum mean something."""
    return tf.random.stateless_uniform([length], [rank, length], 0.5, 1.5)


def main() -> None:
    """Writes the largest error of each algorithm, and whether all ranks have the same bits."""
    strategy = tfdist.Strategy("multi_worker", bucket_bytes=PIECE_BYTES)
    processes = strategy.processes
    messages = Messages(processes.rank, processes.size)
    found = {}
    for name, made in ALGORITHMS.items():
        engine = ScheduledEngine(strategy.engine, made(processes.size), messages)

        @tf.function(autograph=False)
        def summed(*vectors, engine=engine):
            with engine_of(strategy, engine):
                return strategy.run(functools.partial(all_reduce, list(vectors)))

        own = [vector_of(processes.rank, length) for length in LENGTHS]
        errors, bits = [], []
        for _ in range(2):
            sums = [total.numpy() for total in summed(*own)]
            for length, total in zip(LENGTHS, sums):
                exact = np.sum(
                    [
                        vector_of(r, length).numpy().astype(np.float64)
                        for r in range(processes.size)
                    ],
                    axis=0,
                )
                errors.append(float(np.max(np.abs(total - exact) / exact)))
            digest = hashlib.sha256(b"".join(total.tobytes() for total in sums)).digest()
            bits += list(processes.all_gather(list(digest[:7])).tolist())
        found[name] = {"error": max(errors), "equal": all(row == bits[0] for row in bits)}
    if processes.is_chief:
        Path(sys.argv[1]).write_text(json.dumps(found))
    processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
