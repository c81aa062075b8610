"""What each rank of reduction_servers.py runs; rank 0 writes the times of the workers."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from tests.traffic.joining import PORT, join
from tfdist.engines.processes import Processes
from tfdist.step.exchange import all_reduce

# The vectors repeat so many values: a prime, so that parts that have changed places show. The sums
# are exact in float32.
VALUES = 251

Exchange = Callable[[tf.Tensor], tf.Tensor]


def with_reducers(rank: int, addresses: Sequence[str], workers: int) -> None:
    """Sets TF_CONFIG: after the workers come the reducers."""
    tasks = [f"{address}:{PORT}" for address in addresses]
    cluster = {"worker": tasks[:workers], "reducer": tasks[workers:]}
    kind, index = ("worker", rank) if rank < workers else ("reducer", rank - workers)
    task = {"type": kind, "index": index}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})


def summed(vector: tf.Tensor) -> tf.Tensor:
    """The sum as a strategy makes it."""
    return all_reduce([vector])[0]


def idle_seconds() -> float:
    """The seconds that the cores of this machine, which all hosts share, have been idle."""
    fields = Path("/proc/stat").read_text().split()
    return sum(map(int, fields[4:6])) / os.sysconf("SC_CLK_TCK")


def timed(step: Exchange, own: tf.Tensor, processes: Processes) -> dict[str, float]:
    """An exchange that all begin together: the slowest worker's seconds, and how busy cores are."""
    processes.all_gather([0])
    start, idle = time.perf_counter_ns(), idle_seconds()
    step(own)
    wall = processes.all_gather([time.perf_counter_ns() - start])[:, 0]
    seconds = wall.max() / 1e9
    busy = 1 - (idle_seconds() - idle) / seconds / (os.cpu_count() or 1)
    return {"seconds": seconds, "busy": busy}


def main() -> None:
    """Measures one system, after the sum was compared with the exact one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--backend", choices=["multi_worker", "horovod"], required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="in bytes")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--bucket-bytes", type=int, required=True)
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+", required=True)
    arguments = parser.parse_args()
    rank, folder, *addresses = arguments.host
    reducers = len(addresses) - arguments.workers
    if reducers and arguments.backend == "multi_worker":
        with_reducers(int(rank), addresses, arguments.workers)
    else:
        join(arguments.backend, int(rank), Path(folder), addresses)
    strategy: Any = tfdist.Strategy(  # a reducer serves here
        arguments.backend, bucket_bytes=arguments.bucket_bytes
    )
    processes = strategy.processes
    values = np.resize(np.arange(VALUES, dtype=np.float32), arguments.size // 4)
    own = tf.constant(values * 2 ** (processes.rank % 8))
    step = tf.function(lambda vector: strategy.run(summed, (vector,)), autograph=False)
    expected = values * sum(2 ** (worker % 8) for worker in range(processes.size))
    np.testing.assert_array_equal(step(own).numpy(), expected)
    found = [timed(step, own, processes) for _ in range(arguments.rounds)]
    if processes.is_chief:
        arguments.path.write_text(json.dumps(found))
    processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
