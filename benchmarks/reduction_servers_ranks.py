"""What each rank of reduction_servers.py runs; rank 0 writes the times of the workers."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tfdist
from benchmarks.all_reduce import servers
from benchmarks.all_reduce.execution import Messages
from tests.traffic.joining import join
from tfdist.engines.processes import Processes
from tfdist.step.exchange import all_reduce

# The vectors repeat so many values: a prime, so that parts that have changed places show. The sums
# are exact in float32.
VALUES = 251

Exchange = Callable[[tf.Tensor], tf.Tensor]


def exchange_of(strategy: Any, backend: str, workers: list[int], pieces: int) -> Exchange:
    """How this job sums: as the strategy does, if all ranks are workers."""
    if len(workers) == strategy.processes.size:
        return lambda vector: all_reduce([vector])[0]
    if backend == "horovod":
        return servers.by_alltoall(strategy.processes, workers, pieces)
    messages = Messages(strategy.processes.rank, strategy.processes.size)
    return servers.by_messages(strategy.processes, messages, workers, pieces)


def timed(
    step: Exchange, own: tf.Tensor, processes: Processes, workers: list[int]
) -> dict[str, float]:
    """An exchange that all ranks begin together: the slowest worker's seconds, all processors'."""
    processes.all_gather([0])
    start, used = time.perf_counter_ns(), time.process_time_ns()
    step(own)
    mine = [time.perf_counter_ns() - start, time.process_time_ns() - used]
    wall, processor = processes.all_gather(mine).T
    return {"seconds": wall[workers].max() / 1e9, "processor": processor.sum() / 1e9}


def main() -> None:
    """Measures one system, after the sum was compared with the exact one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--backend", choices=["multi_worker", "horovod"], required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="in bytes")
    parser.add_argument("--pieces", type=int, required=True, help="of a vector, with reducers")
    parser.add_argument("--rounds", type=int, required=True)
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+", required=True)
    arguments = parser.parse_args()
    rank, folder, *addresses = arguments.host
    join(arguments.backend, int(rank), Path(folder), addresses)
    strategy: Any = tfdist.Strategy(arguments.backend, exchange="ring")
    processes = strategy.processes
    workers = servers.workers_of(processes.size, arguments.workers)
    values = np.resize(np.arange(VALUES, dtype=np.float32), arguments.size // 4)
    is_worker = processes.rank in workers
    own = tf.constant(values * is_worker * 2 ** (processes.rank % 8))
    exchange = exchange_of(strategy, arguments.backend, workers, arguments.pieces)
    step = tf.function(lambda vector: strategy.run(exchange, (vector,)), autograph=False)
    summed = step(own)
    if is_worker:
        expected = values * sum(2 ** (worker % 8) for worker in workers)
        np.testing.assert_array_equal(summed.numpy(), expected)
    found = [timed(step, own, processes, workers) for _ in range(arguments.rounds)]
    if processes.is_chief:
        arguments.path.write_text(json.dumps(found))
    processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
