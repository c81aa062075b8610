"""A process of `compiled.py`: it trains with and without XLA in turn, and measures the steps."""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from benchmarks.common.runner import in_turn
from tests.traffic.joining import join

COMPILED = {"no": False, "yes": True}


def mlp(width: int) -> keras.Model:
    """Dense layers with what XLA can merge between them."""
    blocks = []
    for _ in range(4):
        blocks += [layers.Dense(width), layers.LayerNormalization(), layers.Activation("gelu")]
    return keras.Sequential([keras.Input((width,)), *blocks, layers.Dense(10)])


def cnn(width: int) -> keras.Model:
    """A small convolutional network on images of 16 x 16 pixels."""
    blocks = []
    for filters in (width // 8, width // 4):
        blocks += [layers.Conv2D(filters, 3, padding="same", activation="gelu")]
        blocks += [layers.MaxPooling2D()]
    image = keras.Input((16, 16, 3))
    return keras.Sequential([image, *blocks, layers.Flatten(), layers.Dense(10)])


MODELS = {"mlp": mlp, "cnn": cnn}


def strategy_of(engine: str, replicas: int) -> tf.distribute.Strategy | None:
    """The strategy of this process; None for one device without a strategy."""
    if engine == "one device":
        return None
    import tfdist

    if engine != "mirrored":
        return tfdist.Strategy(engine)
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    return tfdist.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def train_call(
    strategy: tf.distribute.Strategy | None, arguments: argparse.Namespace, jit_compile: bool
) -> Callable[[], object]:
    """A function that trains one step."""
    keras.utils.set_random_seed(0)
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = MODELS[arguments.model](arguments.width)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-4), loss, jit_compile=jit_compile)
        model.optimizer.build(model.trainable_variables)
    x = np.random.default_rng(0).normal(size=(arguments.batch, *model.input_shape[1:]))
    data = tf.data.Dataset.from_tensors((x.astype("float32"), np.arange(arguments.batch) % 10))
    data = data.repeat()
    iterator = iter(strategy.experimental_distribute_dataset(data) if strategy else data)
    model.make_train_function()
    return lambda: model.train_function(iterator)


def main() -> None:
    """Measures, and writes the seconds of steps and of the first calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    # What `network.run_ranks` appends: the rank, a folder and the addresses of all hosts.
    parser.add_argument("--host", nargs="+")
    arguments = parser.parse_args()
    if arguments.host:
        rank, folder, *addresses = arguments.host
        join(arguments.engine, int(rank), Path(folder), addresses)
    strategy = strategy_of(arguments.engine, arguments.replicas)
    calls, found = {}, {}
    for name, jit_compile in COMPILED.items():
        calls[name] = train_call(strategy, arguments, jit_compile)
        begun = time.perf_counter()
        calls[name]()
        found[name] = {"first": time.perf_counter() - begun, "steps": []}
        calls[name]()
    for _, name in in_turn(list(COMPILED), arguments.rounds):
        begun = time.perf_counter()
        for _ in range(arguments.steps):
            calls[name]()
        found[name]["steps"].append((time.perf_counter() - begun) / arguments.steps)
    if strategy is None or strategy.is_chief:
        arguments.path.write_text(json.dumps(found))
    if strategy is not None:
        strategy.processes.all_gather([0])  # rank 0 must not end first: it serves the others


if __name__ == "__main__":
    main()
