"""Measures steps for `benchmarks.model_parallel`; prints one line of JSON for each model."""

from __future__ import annotations

import json
import statistics
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import tfdist

BATCH, LAYERS, FIRST_STEPS = 256, 8, 3


def milliseconds(model: keras.Model, width: int, steps: int) -> float:
    """The median time of a train step."""
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.optimizer.build(model.trainable_variables)
    x = tf.constant(np.random.default_rng(0).normal(size=(BATCH, width)).astype("float32"))
    step = tf.function(model.train_step)
    times = []
    for _ in range(FIRST_STEPS + steps):
        start = time.perf_counter()
        float(step((x, x))["loss"])
        times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times[FIRST_STEPS:])


def pipeline(width: int, steps: int, *micro_batches: int) -> None:
    """A chain of Dense layers: on one device, then in two stages."""
    devices = tfdist.testing.virtual_devices(2)
    model = keras.Sequential([keras.Input((width,))])
    for _ in range(LAYERS):
        model.add(keras.layers.Dense(width, "tanh"))
    name, whole = f"{LAYERS} Dense layers", _bytes(model.weights)
    show(name, "one device", 1, milliseconds(model, width, steps), whole)
    for count in micro_batches:
        piped = tfdist.pipeline.stages(model, devices, micro_batches=count)
        places = [[w for w in piped.weights if w.value.device.endswith(d)] for d in ("0", "1")]
        what = f"pipeline of 2 stages, micro-batches: {count}"
        show(name, what, 2, milliseconds(piped, width, steps), max(map(_bytes, places)))


def tensor_parallel(width: int, steps: int) -> None:
    """Blocks of two dense layers, of which each rank has a part."""
    keras.utils.set_random_seed(1)
    mesh = tfdist.tensor_parallel.Mesh()
    model = keras.Sequential([keras.Input((width,))])
    for _ in range(LAYERS // 2):
        model.add(tfdist.tensor_parallel.FeedForward(width, width, mesh))
    took = milliseconds(model, width, steps)
    if mesh.rank == 0:
        what = f"tensor-parallel, ranks: {mesh.size}" if mesh.size > 1 else "one device"
        show(f"{LAYERS // 2} FeedForward layers", what, mesh.size, took, _bytes(model.weights))


def _bytes(weights: list[keras.Variable]) -> int:
    return sum(4 * int(np.prod(weight.shape)) for weight in weights)


def show(model: str, divided: str, parts: int, took: float, largest: int) -> None:
    """Prints a row of the table."""
    row = {"model": model, "divided": divided, "parts": parts, "milliseconds": took}
    print(json.dumps({**row, "largest_part_bytes": largest}), flush=True)


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(4)
    kind, *numbers = sys.argv[1:]
    {"pipeline": pipeline, "tensor_parallel": tensor_parallel}[kind](*map(int, numbers))
