"""What each of the two processes of exchange.py runs; rank 0 writes the times."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

RANK = int(os.environ["HOROVOD_RANK"])
ADDRESSES = [f"127.0.0.1:{port}" for port in os.environ["EXCHANGE_PORTS"].split(",")]
os.environ["TF_CONFIG"] = json.dumps(
    {"cluster": {"worker": ADDRESSES}, "task": {"type": "worker", "index": RANK}}
)

import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402

import tfdist  # noqa: E402
from tfdist.stages import exchange  # noqa: E402

MULTI_WORKER = tfdist.Strategy("multi_worker")
HOROVOD = tfdist.Strategy("horovod")


def by_tensorflow(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)


def by_multi_worker(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    specs = [tf.TensorSpec(gradient.shape, gradient.dtype) for gradient in gradients]
    packing = exchange.Packing(gradients, specs, MULTI_WORKER.options.bucket_bytes)
    packed = packing.pack(gradients)
    return packing.unpack(exchange.all_reduce(packed, MULTI_WORKER.largest_message))


def by_raw_horovod(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    return hvd.grouped_allreduce(gradients, op=hvd.Sum)


SYSTEMS = {
    "TensorFlow": (MULTI_WORKER, by_tensorflow),
    "tfdist multi_worker": (MULTI_WORKER, by_multi_worker),
    "raw Horovod": (HOROVOD, by_raw_horovod),
    "tfdist horovod": (HOROVOD, exchange.all_reduce),
}


def step_of(name: str, variables: list[tf.Variable]) -> Callable[[], tf.Tensor]:
    """A traced step that makes gradients, exchanges them and needs all of the sums."""
    strategy, exchanged = SYSTEMS[name]

    def replica_step() -> tf.Tensor:
        sums = exchanged([variable * 2.0 for variable in variables])
        return tf.add_n([total[0] for total in sums])

    return tf.function(lambda: strategy.run(replica_step))


def main() -> None:
    """Writes the seconds of each round, by number of tensors and system."""
    path, megabytes, rounds, *numbers = sys.argv[1:]
    elements = int(float(megabytes) * 1e6 / 4)
    times: dict[str, dict[str, list[float]]] = {}
    for number in numbers:
        size = elements // int(number)
        variables = [tf.Variable(tf.ones([size])) for _ in range(int(number))]
        steps = {name: step_of(name, variables) for name in SYSTEMS}
        for name, step in steps.items():
            total = float(step())
            assert total == 4.0 * int(number), f"{name}: {total}"
            step()
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        order = itertools.cycle([list(steps), list(steps)[::-1]])
        for names in itertools.islice(order, int(rounds)):
            for name in names:
                start = time.perf_counter()
                float(steps[name]())
                seconds[name].append(time.perf_counter() - start)
        times[number] = seconds
    if RANK == 0:
        Path(path).write_text(json.dumps(times))


if __name__ == "__main__":
    main()
