"""What each process of a job of async_stragglers.py runs; the first one writes the results.

Slow workers have a delay in their training step: an operation that sleeps, on the worker. Sleeping
is exact. Busy work would not be: the processes share few cores, so a slow worker would slow the
others down.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tfdist
from tfdist.parameter_server.report import StalenessReport

# Samples in the gradient of one worker.
BATCH = 16
# A loss that has grown to so many times its first value will not come down again.
DIVERGED = 1e3


@dataclasses.dataclass(frozen=True)
class Task:
    """What is learnt.

    Attributes:
        x: float32 inputs, one row per sample.
        y: the targets.
        units: the units of the dense layers.
        loss: the name of Keras' loss.
        loss_of: the same loss in numpy, as a function of outputs and targets.
    """

    x: np.ndarray
    y: np.ndarray
    units: Sequence[int]
    loss: str
    loss_of: Callable[[np.ndarray, np.ndarray], float]


def digits() -> Task:
    """1437 scans of handwritten digits, for dense layers."""
    scans = load_digits()
    x, y = (scans.data[:1437] / 16).astype("float32"), scans.target[:1437]
    return Task(x, y, (128, 10), "sparse_categorical_crossentropy", _cross_entropy)


def linear() -> Task:
    """A linear function of 8 inputs, with variances from 1 to a quarter, without noise.

    The curvature of the loss is twice the largest variance. The curvature determines at which
    learning rate and staleness training must diverge.
    """
    random = np.random.default_rng(0)
    x = random.standard_normal((1437, 8)) * np.geomspace(1.0, 0.5, 8)
    y = x @ random.standard_normal((8, 1))
    return Task(x.astype("float32"), y.astype("float32"), (1,), "mse", _mean_square)


def _cross_entropy(outputs: np.ndarray, targets: np.ndarray) -> float:
    top = outputs.max(axis=1, keepdims=True)
    logs = top[:, 0] + np.log(np.exp(outputs - top).sum(axis=1))
    return float(np.mean(logs - outputs[np.arange(len(targets)), targets]))


def _mean_square(outputs: np.ndarray, targets: np.ndarray) -> float:
    return float(np.mean(np.square(outputs - targets)))


TASKS = {"digits": digits, "linear": linear}


class DelayedModel(keras.Sequential):
    """A model whose training step also sleeps as long as its worker is slow.

    Args:
        layers: the layers.
        delay: called inside the traced step; returns the seconds as a scalar tensor.
    """

    def __init__(self, layers: list, delay: Callable[[], tf.Tensor]):
        super().__init__(layers)
        self._delay = delay

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return super().train_step((slept(x, self._delay()), y))


def slept(value: tf.Tensor, seconds: tf.Tensor) -> tf.Tensor:
    """`value`, after so many seconds."""
    source = tf.data.Dataset.range(1)
    variant = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(source),
        sleep_microseconds=tf.cast(1e6 * seconds, tf.int64),
        output_types=[tf.int64],
        output_shapes=[[]],
    )
    sleeping = tf.data.experimental.from_variant(variant, source.element_spec)
    # Without `take`, the data set would sleep once more before its end.
    with tf.control_dependencies([sleeping.take(1).get_single_element()]):
        return tf.identity(value)


class Watch(keras.callbacks.Callback):
    """Times batches, notes the loss over all training data, and ends the training.

    The clock starts when the first batch is used, because functions are traced before.

    Args:
        run: what is run.
        task: the task of the run.
        every: the number of batches between two looks at the loss.
    """

    def __init__(self, run: dict[str, Any], task: Task, every: int):
        super().__init__()
        self._run = run
        self._task = task
        self._every = every
        self._start = 0.0
        self._at_target = False
        self.batches = 0
        self.seconds = 0.0
        self.curve: list[tuple[int, float, float]] = []

    def on_train_begin(self, logs: dict | None = None) -> None:
        self.start_loss = self._loss()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        now = time.perf_counter()
        if self.batches == 0:
            self._start = now
        self.batches += 1
        self.seconds = now - self._start
        if self.batches % self._every == 0:
            loss = self._loss()
            self.curve.append((self.batches, self.seconds, loss))
            self._at_target |= loss <= self._run["target"]
            self.model.stop_training |= not loss < DIVERGED * self.start_loss
        # By the number of batches, which all processes of `multi_worker` see alike.
        least = "least" if self._at_target else "batches"
        self.model.stop_training |= self.batches >= self._run[least]

    def _loss(self) -> float:
        """The loss, computed in this process so that the workers can go on training."""
        outputs, weights = self._task.x, self.model.get_weights()
        for kernel, bias in zip(weights[::2], weights[1::2]):
            outputs = outputs if outputs is self._task.x else np.maximum(outputs, 0.0)
            outputs = outputs @ kernel + bias
        loss = self._task.loss_of(outputs, self._task.y)
        # JSON cannot express numbers that are not finite.
        return loss if math.isfinite(loss) else sys.float_info.max


def policies_of(name: str) -> Any:
    """The policy that async_stragglers.py calls `name`."""
    staleness = tfdist.staleness
    return {
        "none": None,
        "synchronous": staleness.Synchronous(),
        "SSP(3)": staleness.SSP(3),
        "SSP(10)": staleness.SSP(10),
        "Bounded(8)": staleness.Bounded(8),
        'Bounded(8, "wait")': staleness.Bounded(8, "wait"),
        "InverseLR()": staleness.InverseLR(),
    }[name]


def train(
    strategy: tf.distribute.Strategy, run: dict[str, Any], delay: Callable[[], tf.Tensor]
) -> dict[str, Any]:
    """Trains, and returns the results.

    Args:
        strategy: the strategy.
        run: what is run: the task, the seed, the learning rate, the samples of a batch in multiples
            of `BATCH`, the target loss, how many batches the run has at least if it comes to this
            loss, and after how many batches it ends if it does not.
        delay: as in `DelayedModel`.
    """
    keras.utils.set_random_seed(run["seed"])
    task = TASKS[run["task"]]()
    size = BATCH * run["parts"]
    *hidden, last = task.units
    activation = "softmax" if task.loss_of is _cross_entropy else None
    with strategy.scope():
        layers = [keras.layers.Dense(units, activation="relu") for units in hidden]
        layers += [keras.layers.Dense(last, activation=activation)]
        model = DelayedModel([keras.Input(task.x.shape[1:]), *layers], delay)
        model.compile(keras.optimizers.SGD(run["learning_rate"]), loss=task.loss)
    data = tf.data.Dataset.from_tensor_slices((task.x, task.y))
    data = data.shuffle(len(task.x), seed=run["seed"]).repeat().batch(size, drop_remainder=True)
    # A look takes some milliseconds, and meanwhile the parameter servers make no updates.
    watch = Watch(run, task, every=max(1, 8 // run["parts"]))
    model.fit(
        data,
        steps_per_epoch=run["batches"],
        shuffle=False,
        verbose=0,
        callbacks=[watch, *strategy.callbacks()],
    )
    report = getattr(strategy, "staleness_report", StalenessReport)()
    return run | {
        "updates": watch.batches - report.drops,
        "drops": report.drops,
        "mean_staleness": report.mean_staleness,
        "seconds": watch.seconds,
        "start_loss": watch.start_loss,
        "curve": watch.curve,
    }


def on_parameter_servers(runs: list[dict[str, Any]], delays: tf.Tensor) -> list[dict[str, Any]]:
    """The results of runs, each with a strategy of its own on the same servers."""

    def delay() -> tf.Tensor:
        index = tf.distribute.coordinator.experimental_get_current_worker_index()
        return tf.gather(tf.constant(delays), index)

    results: list[dict[str, Any]] = []
    resolver = None
    for run in runs:
        strategy = tfdist.ParameterServerStrategy(
            resolver, staleness=policies_of(run["policy"]), input="dynamic"
        )
        # TensorFlow's strategy does not hand out the resolver that it was given.
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(strategy.addresses), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        results.append(train(strategy, run, delay))
    return results


def on_equal_processes(runs: list[dict[str, Any]], delays: Sequence[float]) -> list[dict[str, Any]]:
    """The results of synchronous runs without parameter servers."""
    strategy = tfdist.MultiWorkerMirroredStrategy()
    own = delays[strategy.processes.rank]
    return [train(strategy, run, lambda: tf.constant(own)) for run in runs]


def main() -> None:
    """Does all runs; the chief's process writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("engine", choices=("parameter_server", "multi_worker"))
    parser.add_argument("--delays", type=float, nargs="+", required=True, help="of each worker")
    parser.add_argument("--runs", type=json.loads, required=True, help="a list, in JSON")
    arguments = parser.parse_args()
    run_all = on_equal_processes
    if arguments.engine == "parameter_server":
        run_all = on_parameter_servers
    results = run_all(arguments.runs, arguments.delays)
    cluster = tfdist.cluster.Cluster.from_environment()
    if cluster is None or cluster.rank == 0:
        arguments.path.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
