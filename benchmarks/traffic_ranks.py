"""What each process of traffic.py runs; rank 0 writes the bytes that crossed the device."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

import tfdist
from tfdist.compression.choice import Choice
from tfdist.compression.traffic import sent_bytes
from tfdist.step.compression import CompressedExchange

SHAPE = (500, 500)
STEPS = 20


def crossed() -> int:
    """The bytes that have crossed the loopback device since the device was started."""
    return int(Path("/sys/class/net/lo/statistics/tx_bytes").read_text())


def bytes_of(strategy: Any, step: Callable[[], Any]) -> float:
    """The mean number of bytes that a rank sends in one `step`."""
    for _ in range(3):
        step()
    strategy.processes.all_gather([0])
    before = crossed()
    for _ in range(STEPS):
        step()
    strategy.processes.all_gather([0])
    return (crossed() - before) / STEPS / strategy.num_replicas_in_sync


def main() -> None:
    """Writes the bytes per step, and the bytes of an idle second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--compressor", required=True)
    arguments = parser.parse_args()
    strategy = tfdist.Strategy(arguments.strategy)
    spec = tf.TensorSpec(SHAPE, tf.float32)
    gradient = tf.random.stateless_normal(SHAPE, [1, strategy.processes.rank])
    with strategy.scope():
        exchange = CompressedExchange(
            Choice.of(arguments.compressor), [spec], ["kernel"], strategy.options.bucket_bytes, 0
        )
    number = tf.constant(0, tf.int64)

    def all_reduce() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)

    def compressed_all_reduce() -> dict[int, tf.Tensor]:
        return exchange([gradient], number)

    engine = tf.function(lambda: strategy.run(all_reduce))
    compressed = tf.function(lambda: strategy.run(compressed_all_reduce))
    found = {"engine": bytes_of(strategy, engine), "tfdist": bytes_of(strategy, compressed)}
    before, start = crossed(), time.perf_counter()
    time.sleep(3)
    seconds = time.perf_counter() - start
    found["idle"] = (crossed() - before) / seconds / strategy.num_replicas_in_sync
    (unit,) = exchange.units
    way, replicas = unit.compressor.aggregation, strategy.num_replicas_in_sync
    found["stated"] = sent_bytes(unit.wire_bytes, way, replicas)
    strategy.processes.all_gather([0])
    if strategy.processes.rank == 0:
        arguments.path.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
