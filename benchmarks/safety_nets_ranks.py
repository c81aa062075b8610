"""What each of the two processes of safety_nets.py runs; rank 0 writes what it measured."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.engines.processes import Processes
from tfdist.processes import callbacks, hooks, single_batches
from tfdist.processes.saving import write_together
from tfdist.processes.shared_variables import all_variables, broadcast_variables, replica_states

EPOCH = 100
STEPS, EPOCHS = 3, 3
PHASES = [
    (owner, phase)
    for owner in (callbacks.First, callbacks.Last)
    for phase in ("on_epoch_begin", "on_epoch_end")
]


class Meter:
    """Adds up the seconds, bytes and memory of a safety net.

    Args:
        strategy: the strategy whose processes are watched.
    """

    def __init__(self, strategy: tf.distribute.Strategy):
        self.cost = {"seconds": 0.0, "bytes": 0, "peak": 0}
        for processes in (strategy.processes, strategy.processes.aside):
            engines = ["_sum"]
            if type(processes)._bytes_of is not Processes._bytes_of:
                engines.append("_bytes_of")
            for name in engines:
                setattr(processes, name, self._counting(getattr(processes, name)))

    def _counting(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counted(value: Any, *others: Any) -> Any:
            self.cost["bytes"] += math.prod(value.shape) * tf.as_dtype(value.dtype).size
            return send(value, *others)

        return counted

    def start(self) -> None:
        """Forgets what was measured."""
        self.cost.update(seconds=0.0, bytes=0, peak=0)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Measures what happens inside."""
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        memory, start = status("VmRSS"), time.perf_counter()
        yield
        self.cost["seconds"] += time.perf_counter() - start
        self.cost["peak"] = max(self.cost["peak"], status("VmHWM") - memory)


def status(name: str) -> int:
    """A number of bytes from the status file of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise KeyError(name)


def make_model(strategy: tf.distribute.Strategy, layers: int, width: int) -> keras.Model:
    """Dense layers without biases."""
    with strategy.scope():
        stack = [keras.layers.Dense(width, use_bias=False) for _ in range(layers)]
        model = keras.Sequential([keras.Input((width,)), *stack])
        model.compile(keras.optimizers.Adam(1e-6), "mse")
        model.optimizer.build(model.trainable_variables)
    return model


class Steps(keras.callbacks.Callback):
    """Notes the seconds of each batch."""

    decides_in_batches = False

    def __init__(self):
        super().__init__()
        self.steps: list[float] = []

    def on_train_batch_begin(self, batch, logs=None):
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(time.perf_counter() - self._start)


def in_fit(
    model: keras.Model, meter: Meter, data: tuple, extra: list[keras.callbacks.Callback]
) -> tuple[float, dict[str, Any]]:
    """The seconds of a step, and the cost of the nets per epoch, in `fit` with these callbacks."""
    watch = Steps()
    costs: list[dict[str, Any]] = []
    originals = {(owner, phase): getattr(owner, phase) for owner, phase in PHASES}

    def measured(original: Callable[..., None], owner: type, phase: str) -> Callable[..., None]:
        @functools.wraps(original)
        def run(self: Any, *args: Any, **kwargs: Any) -> None:
            if (owner, phase) == PHASES[0]:
                meter.start()
            with meter.running():
                original(self, *args, **kwargs)
            if (owner, phase) == PHASES[-1]:
                costs.append(dict(meter.cost))

        return run

    for (owner, phase), original in originals.items():
        setattr(owner, phase, measured(original, owner, phase))
    try:
        model.fit(*data, epochs=EPOCHS, verbose=0, shuffle=False, callbacks=[watch, *extra])
    finally:
        for (owner, phase), original in originals.items():
            setattr(owner, phase, original)
    dearest = max(costs[1:], key=lambda cost: cost["seconds"])  # not all epochs leave gradients
    return statistics.median(watch.steps[2:]), dearest


def by_itself(meter: Meter, net: Callable[[], None], rounds: int = 3) -> dict[str, Any]:
    """The cost of one net: the median of some rounds."""
    costs = []
    for _ in range(rounds):
        meter.start()
        with meter.running():
            net()
        costs.append(dict(meter.cost))
    return {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}


def own_loop(strategy: tf.distribute.Strategy, meter: Meter) -> dict[str, Any]:
    """The cost of comparing what processes read in a loop of the user's own; median of epochs."""
    data = tf.data.Dataset.from_tensors(tf.zeros([2, 1])).repeat(EPOCH)
    compare, costs = strategy.data.compare_reading, []

    def measured(what: str) -> None:
        with meter.running():
            compare(what)

    strategy.data.compare_reading = measured
    for _ in range(EPOCHS):
        meter.start()
        for _ in strategy.experimental_distribute_dataset(data):
            pass
        costs.append(dict(meter.cost))
    del strategy.data.compare_reading
    return {name: statistics.median(cost[name] for cost in costs) for name in costs[0]}


def single(model: keras.Model, x: np.ndarray) -> None:
    """What precedes `train_on_batch` for each batch of an epoch."""
    for _ in range(EPOCH):
        single_batches.agree(model, "train_on_batch", {"x": x, "y": x})


class Nowhere(dict):
    """A file that keeps nothing."""

    def __setitem__(self, key: str, value: Any) -> None:
        pass


def save(model: keras.Model) -> None:
    """Saves what replicas keep, but not to a disk, whose time does not matter here."""
    optimizer = model.optimizer

    def write() -> None:
        optimizer.compression_state.save_own_variables(Nowhere())
        optimizer.accumulator.save_own_variables(Nowhere())

    write_together(model.distribute_strategy.processes, replica_states(model), write)


def main() -> None:
    """Writes the seconds of a step and the cost of each net."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--set", choices=["plain", "compressed"], required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    arguments = parser.parse_args()
    options = {}
    if arguments.set == "compressed":
        topk = tfdist.compression.TopK(0.001, min_bytes=0)
        options = {"compression": topk, "accumulation_steps": 2}
    strategy = tfdist.Strategy("auto", **options)
    meter = Meter(strategy)
    model = make_model(strategy, arguments.layers, arguments.width)
    samples = STEPS * arguments.batch
    x = np.random.default_rng(0).normal(size=(samples, arguments.width)).astype("float32")
    data = x, x, arguments.batch
    nets = {}
    if arguments.set == "plain":
        step, nets["checks, no callback"] = in_fit(model, meter, data, [])
        sets_rate = keras.callbacks.ReduceLROnPlateau("loss", patience=100)
        _, nets["checks, a callback at the epoch's end"] = in_fit(model, meter, data, [sets_rate])
        both = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate)
        _, nets["checks, callbacks at both ends"] = in_fit(model, meter, data, [sets_rate, both])
        agree = functools.partial(hooks.agree, model, "evaluate", {})
        nets["checks when `evaluate` or `predict` begins, once"] = by_itself(meter, agree)
        nets["checks in a loop of one's own"] = own_loop(strategy, meter)
        batches = functools.partial(single, model, x[: arguments.batch])
        nets[f"checks of {EPOCH} x `train_on_batch`"] = by_itself(meter, batches)
        share = functools.partial(broadcast_variables, strategy, all_variables(model), 0)
        nets["weights for all, once"] = by_itself(meter, share)
    else:
        may_save = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
        step, nets["checks, a callback that may save alone, but does not"] = in_fit(
            model, meter, data, [may_save]
        )
        micro_step = model.optimizer.accumulator.micro_step

        def change_and_save() -> None:
            micro_step.assign(1)
            save(model)

        nets["save, once"] = by_itself(meter, change_and_save)
    if strategy.processes.is_chief:
        arguments.path.write_text(json.dumps({"step": step, "nets": nets}))


if __name__ == "__main__":
    main()
