"""One rank: exchanges with each compressor and writes how many bytes left its interface.

python -m tests.traffic.rank BACKEND RANK FOLDER ADDRESS...
"""

from __future__ import annotations

import json
import pathlib
import sys
import time

from tests.traffic.joining import join

BACKEND, RANK, FOLDER, *ADDRESSES = sys.argv[1:]
_SHAPE = (512, 256)
_WARM_UP, _STEPS = 2, 5


def _sent() -> int:
    return int(pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main() -> None:
    """Writes measured and stated bytes per step, and its seconds, by compressor."""
    join(BACKEND, int(RANK), pathlib.Path(FOLDER), ADDRESSES)
    import tensorflow as tf

    import tfdist
    from tests.compression.replicas import COMPRESSING, name_of
    from tfdist.compression.choice import Choice
    from tfdist.compression.traffic import sent_bytes
    from tfdist.step.compression import CompressedExchange

    strategy = tfdist.Strategy(BACKEND)
    spec = tf.TensorSpec(_SHAPE, tf.float32)
    gradient = tf.random.stateless_normal(_SHAPE, [1, int(RANK)])
    found = {}
    for compressor in COMPRESSING:
        with strategy.scope():
            exchange = CompressedExchange(
                Choice.of(compressor), [spec], ["kernel"], strategy.options.bucket_bytes, seed=0
            )

        @tf.function
        def step(number, exchange=exchange):
            return strategy.run(lambda: exchange([gradient], number))

        before, began = 0, 0.0
        for number in range(_WARM_UP + _STEPS):
            if number == _WARM_UP:
                strategy.processes.all_gather([0])
                before, began = _sent(), time.perf_counter()
            step(tf.constant(number, tf.int64))
        strategy.processes.all_gather([0])
        sent, seconds = _sent() - before, time.perf_counter() - began
        stated = sum(
            sent_bytes(u.wire_bytes, _aggregation(u.compressor, len(ADDRESSES)), len(ADDRESSES))
            for u in exchange.units
        )
        found[name_of(compressor)] = {
            "sent": sent / _STEPS,
            "stated": stated,
            "seconds": seconds / _STEPS,
        }
    pathlib.Path(FOLDER, f"{RANK}.json").write_text(json.dumps(found))
    strategy.processes.all_gather([0])  # rank 0 serves the others


def _aggregation(compressor, replicas: int) -> str:
    halves = compressor.name == "fp16" and replicas == 2
    return "gather" if halves else compressor.aggregation


if __name__ == "__main__":
    main()
