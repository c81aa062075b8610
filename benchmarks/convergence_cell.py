"""One configuration of `convergence.py`, in a process of its own; prints its runs as a JSON line.

TensorFlow's number of virtual devices is fixed once TensorFlow has started. So each number needs a
process of its own. The seeds of a configuration share a process, because starting TensorFlow takes
longer than some of the runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import char_lm
import digits
import tfdist

# Steps between two points of a curve.
EVERY = 10
# Short pieces of text: a small model learns mostly from near characters.
char_lm.CONTEXT = 32

Samples = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learnt.

    Attributes:
        batches: makes endless global batches, from a seed.
        probe: the training samples for the curve of the loss; the loss of a batch is too noisy.
        test: the held-out samples.
        build_model: makes a model that gives logits.
        learning_rate: makes the learning rate for a number of steps.
        metric: computes the metric from the logits for the held-out samples, and their labels.
        momentum: the momentum of SGD, or of DGC.
    """

    batches: Callable[[int], Iterator[Samples]]
    probe: Samples
    test: Samples
    build_model: Callable[[], keras.Model]
    learning_rate: Callable[[int], Any]
    metric: Callable[[tf.Tensor, np.ndarray], float]
    momentum: float = 0.9


def cross_entropy() -> keras.losses.Loss:
    """The loss of all tasks."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def digits_task() -> Task:
    """A small CNN."""
    layers = keras.layers
    return _scans(
        0.05,
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, strides=2, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
    )


def mlp_task(learning_rate: float = 0.1) -> Task:
    """Dense layers only."""
    layers = keras.layers
    return _scans(
        learning_rate,
        layers.Flatten(),
        layers.Dense(256, activation="relu"),
        layers.Dense(128, activation="relu"),
    )


def _scans(learning_rate: float, *hidden: keras.Layer) -> Task:
    """1437 scans of digits to train with, 64 per step, and 360 to test."""
    (x, y), (x_more, y_more), test = digits.load_data()
    x, y = np.concatenate([x, x_more]), np.concatenate([y, y_more])

    def batches(seed: int) -> Iterator[Samples]:
        random = np.random.default_rng(seed)
        while True:
            order = random.permutation(len(x))
            for first in range(0, len(x) - 63, 64):
                chosen = order[first : first + 64]
                yield x[chosen], y[chosen]

    def build_model() -> keras.Model:
        return keras.Sequential([keras.Input((8, 8, 1)), *hidden, keras.layers.Dense(10)])

    def accuracy(logits: tf.Tensor, labels: np.ndarray) -> float:
        return 100.0 * float(np.mean(np.argmax(logits, axis=-1) == labels))

    return Task(batches, (x, y), test, build_model, lambda steps: learning_rate, accuracy)


def characters_task(peak: float = 0.1, momentum: float = 0.9) -> Task:
    """The model and the texts of examples/char_lm.py, with one narrow block.

    Args:
        peak: the highest learning rate.
        momentum: as in `Task`.
    """
    train, held_out = char_lm.load_text()
    inputs, targets = char_lm.validation_pieces(held_out)

    def batches(seed: int) -> Iterator[Samples]:
        random = np.random.default_rng(seed)
        while True:
            starts = random.integers(len(train) - char_lm.CONTEXT, size=(64, 1))
            pieces = train[starts + np.arange(char_lm.CONTEXT + 1)]
            yield pieces[:, :-1], pieces[:, 1:]

    def build_model() -> keras.Model:
        return char_lm.build_model(1, width=64, blocks=1, heads=2)

    def learning_rate(steps: int) -> keras.optimizers.schedules.LearningRateSchedule:
        warmup = min(40, steps // 2)
        return keras.optimizers.schedules.CosineDecay(
            0.0, steps - warmup, warmup_target=peak, warmup_steps=warmup
        )

    def bits_per_character(logits: tf.Tensor, labels: np.ndarray) -> float:
        return float(cross_entropy()(labels, logits)) / math.log(2)

    probe = tuple(np.concatenate(parts) for parts in zip(*_first(batches(1_000_000), 4)))
    test = inputs[::4], targets[::4]
    return Task(batches, probe, test, build_model, learning_rate, bits_per_character, momentum)


def _first(samples: Iterator[Samples], count: int) -> list[Samples]:
    return [next(samples) for _ in range(count)]


def train(task: Task, replicas: int, compression: Any, steps: int, seed: int) -> dict[str, Any]:
    """Trains one model.

    A loop of its own instead of `model.fit`: at the end of `fit`, TensorFlow waits for up to half a
    minute until the data set's iterator on four virtual devices has ended.

    Returns:
        The curve as pairs of step and loss, the metric, and the bytes that a replica sends.
    """
    keras.utils.set_random_seed(seed)
    devices = [f"CPU:{index}" for index in range(replicas)]
    # DGC itself has the momentum.
    own = {"momentum": task.momentum} if compression and compression["name"] == "dgc" else {}
    compressor = compression and tfdist.compression.get(compression | own)
    strategy = tfdist.Strategy("mirrored", devices=devices, compression=compressor, seed=seed)
    # Made again: the example's model comes with an optimizer that DGC does not work with.
    template = task.build_model()
    with strategy.scope():
        model = type(template).from_config(template.get_config())
        optimizer = keras.optimizers.SGD(task.learning_rate(steps), 0.0 if own else task.momentum)
        model.compile(optimizer, loss=cross_entropy())

    def parts(samples: np.ndarray) -> Any:
        return strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(samples[context.replica_id_in_sync_group :: replicas])
        )

    @tf.function
    def step(x: Any, y: Any) -> None:
        strategy.run(lambda x, y: model.train_step((x, y)), args=(x, y))

    predict = tf.function(lambda x: model(x, training=False))
    losses = []
    batches = task.batches(seed)
    for number in range(1, steps + 1):
        x, y = next(batches)
        step(parts(x), parts(y))
        if number % EVERY == 0:
            losses.append((number, float(cross_entropy()(task.probe[1], predict(task.probe[0])))))
    metric = task.metric(predict(task.test[0]), task.test[1])
    sizes = [4 * math.prod(variable.shape) for variable in model.trainable_variables]
    sent = bytes_per_step(model.optimizer, sizes)
    return {"losses": losses, "metric": metric, "bytes_per_step": sent, "model_bytes": sum(sizes)}


def bytes_per_step(optimizer: tfdist.DistributedOptimizer, sizes: list[int]) -> int:
    """The bytes that a replica hands to the exchange: payloads, and uncompressed variables."""
    units = optimizer.compressed.units if optimizer.compressed else []
    compressed = {index for unit in units for index in unit.bucket.indices}
    rest = [size for index, size in enumerate(sizes) if index not in compressed]
    return sum(unit.wire_bytes for unit in units) + sum(rest)


TASKS = {
    "digits": digits_task,
    "mlp": mlp_task,
    "mlp-slow": functools.partial(mlp_task, 0.02),
    "characters": characters_task,
    "characters-plain": functools.partial(characters_task, 0.3, 0.0),
}


def main() -> None:
    """Runs what the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--compression", type=json.loads, required=True, help="in JSON")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seeds", type=int, required=True)
    cell = parser.parse_args()
    tfdist.testing.virtual_devices(cell.replicas)
    task = TASKS[cell.task]()
    runs = [
        train(task, cell.replicas, cell.compression, cell.steps, seed) for seed in range(cell.seeds)
    ]
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
