"""One rank: exchanges with each compressor and writes how many bytes left its interface.

python -m tests.traffic.rank BACKEND RANK RESULT ADDRESS...
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

BACKEND, RANK, RESULT, *ADDRESSES = sys.argv[1:]
PORT = 3456
_SHAPE = (512, 256)
_WARM_UP, _STEPS = 2, 5


def _join_multi_worker() -> None:
    cluster = {"worker": [f"{address}:{PORT}" for address in ADDRESSES]}
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": cluster, "task": {"type": "worker", "index": int(RANK)}}
    )


def _join_horovod() -> None:
    """Rank 0 serves the rendezvous, where all ranks meet."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    slots = get_host_assignments(parse_hosts(",".join(f"{a}:1" for a in ADDRESSES)), len(ADDRESSES))
    port_file = pathlib.Path(RESULT).with_name("rendezvous")
    if RANK == "0":
        server = RendezvousServer()
        port = server.start()
        server.init(slots)
        port_file.with_suffix(".partial").write_text(str(port))
        port_file.with_suffix(".partial").rename(port_file)
    while not port_file.exists():
        time.sleep(0.05)
    slot = slots[int(RANK)]
    os.environ.update(
        HOROVOD_CONTROLLER="gloo",
        HOROVOD_CPU_OPERATIONS="gloo",
        HOROVOD_GLOO_IFACE="eth0",
        HOROVOD_GLOO_RENDEZVOUS_ADDR=ADDRESSES[0],
        HOROVOD_GLOO_RENDEZVOUS_PORT=port_file.read_text(),
        HOROVOD_HOSTNAME=slot.hostname,
        HOROVOD_RANK=str(slot.rank),
        HOROVOD_SIZE=str(slot.size),
        HOROVOD_LOCAL_RANK="0",
        HOROVOD_LOCAL_SIZE="1",
        HOROVOD_CROSS_RANK=str(slot.cross_rank),
        HOROVOD_CROSS_SIZE=str(slot.cross_size),
    )


def _sent() -> int:
    return int(pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def main() -> None:
    """Writes measured and stated bytes per step, by compressor."""
    {"multi_worker": _join_multi_worker, "horovod": _join_horovod}[BACKEND]()
    import tensorflow as tf

    import tfdist
    from tests.compression.replicas import COMPRESSING, name_of
    from tfdist.compression.choice import Choice
    from tfdist.compression.traffic import sent_bytes
    from tfdist.stages.compression import CompressedExchange

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

        before = 0
        for number in range(_WARM_UP + _STEPS):
            if number == _WARM_UP:
                strategy.processes.all_gather([0])
                before = _sent()
            step(tf.constant(number, tf.int64))
        strategy.processes.all_gather([0])
        stated = sum(
            sent_bytes(u.wire_bytes, _aggregation(u.compressor, len(ADDRESSES)), len(ADDRESSES))
            for u in exchange.units
        )
        found[name_of(compressor)] = {"sent": (_sent() - before) / _STEPS, "stated": stated}
    pathlib.Path(RESULT).write_text(json.dumps(found))
    strategy.processes.all_gather([0])  # rank 0 serves the others


def _aggregation(compressor, replicas: int) -> str:
    halves = compressor.name == "fp16" and replicas == 2
    return "gather" if halves else compressor.aggregation


if __name__ == "__main__":
    main()
