"""One cell of `step_overhead.py`, in a process of its own; prints its result as a JSON line.

Two plain `tf.distribute.MirroredStrategy` objects on different devices cannot share a process:
TensorFlow aborts their collective operations. And peak memory is a property of a process.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

from benchmarks.common.runner import in_turn

CHOICES = ("plain", "tfdist", "timeline", "fit", "watched")
WIDTH = 16
SAMPLES_PER_REPLICA = 8
WARM_UP_SECONDS = 0.5
# The report has some epochs already where the ends of epochs are timed.
EPOCHS_BEFORE, EPOCH_ENDS, STEPS_OF_EPOCH = 5, 20, 3
# The error of TensorFlow's collective operations on CPU replicas, if steps_per_execution > 1.
KNOWN_CRASH = "must feed a value for placeholder"

TrainCall = Callable[[], Any]


def make_strategy(name: str, replicas: int) -> tf.distribute.Strategy:
    """The strategy called "plain" (TensorFlow's) or "tfdist", on virtual CPU devices.

    "timeline" is tfdist's, whose steps note what `tfdist.callbacks.Timeline` wants to know. "fit"
    and "watched" are tfdist's too; see `InFit`.
    """
    devices = [f"CPU:{index}" for index in range(replicas)]
    if name == "plain":
        return tf.distribute.MirroredStrategy(devices)
    # Imported here so that tfdist does not count in the peer's trace time and memory.
    import tfdist

    strategy = tfdist.MirroredStrategy(devices)
    if name == "timeline":
        from tfdist.step.spans import Spans

        strategy.spans = Spans(0, 1)  # as after the steps that are kept
    return strategy


def make_train_call(strategy: tf.distribute.Strategy, cell: argparse.Namespace) -> TrainCall:
    """A function that calls the train function of `model.fit` once, on the next batches."""
    return train_call(strategy, make_model(strategy, cell), cell)


def make_model(strategy: tf.distribute.Strategy, cell: argparse.Namespace) -> keras.Model:
    """A chain of small dense layers, so that a step is mostly overhead and little arithmetic."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.layers.Dense(WIDTH) for _ in range(cell.variables // 2)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        optimizer = keras.optimizers.get(cell.optimizer)
        model.compile(optimizer, loss="mse", steps_per_execution=cell.steps_per_execution)
        model.optimizer.build(model.trainable_variables)
    return model


class InFit:
    """Calls the train function with callbacks around it, as `fit` does.

    Args:
        strategy: the strategy.
        name: "fit" for Keras' own callbacks only; "watched" with a report, and with what `tfdist
            run --watch` shows.
        cell: the cell.
        folder: a temporary folder.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, name: str, cell: argparse.Namespace, folder: str
    ) -> None:
        from tfdist.callbacks.live import Live
        from tfdist.callbacks.run_report import RunReport

        self._model = make_model(strategy, cell)
        watching = [RunReport(f"{folder}/report.html", folder), Live(folder)]
        own = watching if name == "watched" else []
        self._callbacks = keras.callbacks.CallbackList(
            own, add_history=True, model=self._model, epochs=EPOCHS_BEFORE + EPOCH_ENDS
        )
        self._model.make_train_function()
        self._callbacks.on_train_begin()
        self._callbacks.on_epoch_begin(0)
        self._epoch = self._step = 0
        self._call = train_call(strategy, self._model, cell)

    def __call__(self) -> float:
        """Makes one step. Returns the seconds of the callbacks before and after it."""
        before = time.perf_counter()
        self._callbacks.on_train_batch_begin(self._step)
        called = time.perf_counter()
        logs = self._call()
        returned = time.perf_counter()
        self._callbacks.on_train_batch_end(self._step, logs)
        self._step += 1
        return called - before + time.perf_counter() - returned

    def end_epoch(self) -> float:
        """Ends the epoch and begins the next one.

        Returns:
            The seconds of the callbacks until after the first step, as they begin anew there, too.
        """
        logs = {name: float(value) for name, value in self._model.get_metrics_result().items()}
        begun = time.perf_counter()
        self._callbacks.on_epoch_end(self._epoch, logs)
        self._epoch, self._step = self._epoch + 1, 0
        self._callbacks.on_epoch_begin(self._epoch)
        return time.perf_counter() - begun + self()


def train_call(
    strategy: tf.distribute.Strategy, model: keras.Model, cell: argparse.Namespace
) -> TrainCall:
    """A function that calls the train function of `model` once, on the next batches."""
    batch = SAMPLES_PER_REPLICA * strategy.num_replicas_in_sync
    x = np.random.default_rng(0).normal(size=(batch, WIDTH)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x)).repeat()
    data = data.batch(batch, drop_remainder=not cell.dynamic)
    iterator = iter(strategy.experimental_distribute_dataset(data))
    model.make_train_function()
    return lambda: model.train_function(iterator)


def time_calls(call: TrainCall, count: int) -> float:
    """The mean seconds of `count` calls."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def calls_per_round(call: TrainCall, seconds: float) -> int:
    """How many calls fill a round of `seconds`, once the function is warm."""
    deadline = time.perf_counter() + min(WARM_UP_SECONDS, 10 * seconds)
    times: list[float] = []
    while not times or time.perf_counter() < deadline:
        times.append(time_calls(call, 1))
    return max(1, math.ceil(seconds / statistics.median(times)))


def compare_step_times(cell: argparse.Namespace) -> dict[str, Any]:
    """The seconds per step of each strategy in each round; strategies alternate as in ABBA.

    Where one of them is watched, "epoch_ends" has the seconds of each end of an epoch as well.
    """
    calls: dict[str, TrainCall] = {}
    folder = tempfile.mkdtemp() if "watched" in cell.strategies else ""
    for name in cell.strategies:
        strategy = make_strategy(name, cell.replicas)
        if folder:
            calls[name] = InFit(strategy, name, cell, folder)
        else:
            calls[name] = make_train_call(strategy, cell)
        calls[name]()
    count = max(calls_per_round(call, cell.round_seconds) for call in calls.values())
    rounds: dict[str, Any] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    for _, name in in_turn(list(calls), cell.rounds):
        rounds[name].append(time_calls(calls[name], count) / cell.steps_per_execution)
    fits = {name: call for name, call in calls.items() if isinstance(call, InFit)}
    if fits:
        rounds["epoch_ends"] = compare_epoch_ends(fits)
    shutil.rmtree(folder, ignore_errors=True)
    return rounds


def compare_epoch_ends(fits: dict[str, InFit]) -> dict[str, list[float]]:
    """The seconds of the callbacks at each end of an epoch, in turn.

    The epochs are so short that a report would leave out most of its pages; here none is left out.
    """
    from tfdist.callbacks import run_report

    found: dict[str, list[float]] = {name: [] for name in fits}
    with mock.patch.object(run_report, "PAUSE", 0):
        for number, name in in_turn(list(fits), EPOCHS_BEFORE + EPOCH_ENDS):
            for _ in range(STEPS_OF_EPOCH):
                fits[name]()
            seconds = fits[name].end_epoch()
            if number >= EPOCHS_BEFORE:
                found[name].append(seconds)
    return found


def measure_alone(cell: argparse.Namespace) -> dict:
    """The seconds of the first call and the process's peak memory, for a single strategy."""
    (name,) = cell.strategies
    call = make_train_call(make_strategy(name, cell.replicas), cell)
    try:
        trace_seconds = time_calls(call, 1)
    except tf.errors.InvalidArgumentError as error:
        if KNOWN_CRASH not in error.message:
            raise
        return {"error": KNOWN_CRASH}
    time_calls(call, 3)
    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"trace_seconds": trace_seconds, "peak_bytes": kibibytes * 1024}


def main() -> None:
    """Runs the cell that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategies", nargs="+", choices=CHOICES)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--variables", type=int, required=True)
    parser.add_argument("--steps-per-execution", type=int, required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--rounds", type=int, default=0, help="0: trace time and memory instead")
    parser.add_argument("--round-seconds", type=float, default=0.05)
    cell = parser.parse_args()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * cell.replicas
    )
    print(json.dumps(compare_step_times(cell) if cell.rounds else measure_alone(cell)))


if __name__ == "__main__":
    main()
