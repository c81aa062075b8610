"""The callback that writes what all replicas do in some steps into one file."""

from __future__ import annotations

import json
import os
import pathlib
import time
from typing import Any

import keras
import tensorflow as tf

from tfdist.arguments import check_path, problem_with_file, shown
from tfdist.callbacks.trace import events_of
from tfdist.engines.clocks import clocks_of
from tfdist.processes.runs import raise_everywhere
from tfdist.step.spans import Point, Spans
from tfdist.watch.files import write_whole

_ERROR = 1e-3  # seconds


class Timeline(keras.callbacks.Callback):
    """Writes a trace of some steps of all replicas, for Perfetto and `chrome://tracing`.

    The file has, for each step and replica: waiting for data (with the call of the step), computing
    from the batch to the gradients, each exchange of a bucket, the update, and with compression
    encoding, the exchange of payloads, and decoding. Each rank is a process of the trace, and each
    replica a thread; exchanges and codecs have threads of their own, as they run beside the
    computation. Other operations between replicas are a part of what they are in, such as those of
    synchronized layers and of clipping. With `sharding` the exchanges are "reduce-scatter" before
    the update and "all-gather" in it. With several optimizers "compute" ends with the first
    gradients.

    The times are those of rank 0's clock. The `metadata` of the file have the offset of each rank's
    clock, and the largest error of these, which is at most 1 ms where the ranks answer fast enough.

    TensorFlow traces the steps anew when training begins and after the last of `steps`. In between,
    each step takes up to a tenth of a millisecond longer for each time that is noted, as what is
    timed waits until its begin is noted. Where kernels run on a GPU, times are those of the host.

    Give the callback to all ranks; rank 0 writes the file when training ends. If an exception ends
    training, there is no file. If the file cannot be written then, there is a warning. If training
    ends before the last of `steps`, a warning and the `metadata` say which steps are there. With
    one replica the file is empty.

    The format is the Trace Event Format, in JSON:
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU

    Args:
        path: of the file; its folder must exist.
        steps: the first step, counted from 0 over all epochs, and the step before which to stop.

    Raises:
        TypeError: for a `path` that is none.
        ValueError: for other `steps`; at the beginning of training, for a file that cannot be
            written, and for a strategy or a model whose steps cannot be traced like this.

    Example:

    >>> import json, keras, numpy as np, os, tempfile, tfdist
    >>> strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="sgd", loss="mse")
    >>> x = np.ones((8, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "trace.json")
    ...     timeline = tfdist.callbacks.Timeline(path, steps=(1, 3))
    ...     _ = model.fit(x, x, batch_size=2, verbose=0, callbacks=[timeline])
    ...     with open(path) as file:
    ...         events = json.load(file)["traceEvents"]
    >>> sorted({event["name"] for event in events if event["ph"] == "X"})
    ['compute', 'exchange 0', 'step', 'update', 'wait for data']
    """

    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(self, path: str | os.PathLike, steps: tuple[int, int] = (100, 110)):
        super().__init__()
        check_path("path", path)
        is_pair = isinstance(steps, (tuple, list)) and len(steps) == 2
        if not is_pair or not all(type(s) is int for s in steps) or not 0 <= steps[0] < steps[1]:
            raise ValueError(
                "`steps` must be two integers: the first step, from 0, and a later one before "
                f"which to stop. Received: steps={shown(steps)}"
            )
        self._path = pathlib.Path(path)
        self._steps = steps[0], steps[1]
        self._calls: list[int] = []
        self._ended = 0
        self._spans: Spans

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to note times.

        Raises:
            ValueError: where steps cannot be traced.
        """
        strategy = self.model.distribute_strategy
        _check(strategy, self.model)
        error = problem_with_file("timeline", "path", self._path) if strategy.is_chief else None
        raise_everywhere(strategy.processes, error, "begin the timeline")
        self._calls, self._ended = [], 0
        self._spans = strategy.spans = Spans(*self._steps)
        strategy.measure_steps(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Notes when Keras calls the step."""
        if self._steps[0] <= self._spans.steps < self._steps[1]:
            self._calls.append(time.time_ns())

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Ends the notes after the last of the steps, in all ranks after the same one."""
        self._ended += 1
        if self._ended == self._steps[1]:
            self._stop()

    def _stop(self) -> None:
        strategy = self.model.distribute_strategy
        if strategy.spans is not None:
            strategy.spans = None
            strategy.measure_steps(self.model)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Gathers what all ranks have noted, and writes the file."""
        strategy = self.model.distribute_strategy
        self._stop()
        clocks = clocks_of(strategy.engine, _ERROR)
        own = json.dumps([self._spans.points, self._calls])
        texts = strategy.processes.all_gather_texts(own)
        if not strategy.is_chief:
            return
        events: list[dict[str, Any]] = []
        for rank, (text, clock) in enumerate(zip(texts, clocks)):
            rows, calls = json.loads(text)
            points = [Point(*row) for row in rows]
            events += events_of(rank, points, calls, round(1e9 * clock.offset_seconds))
        first, end = self._steps
        ended = max(first, min(end, self._ended))
        if strategy.num_replicas_in_sync == 1:
            self._warn("there is one replica, so the timeline %s is empty")
        elif ended == first:
            self._warn(f"training ended before step {first}, so the timeline %s is empty")
        elif ended < end:
            there = (
                f"step {first}" if ended == first + 1 else f"the steps from {first} to {ended - 1}"
            )
            self._warn(f"training ended before step {ended}, so the timeline %s has only {there}")
        metadata = {
            "steps": [first, ended],
            "clock_offset_seconds": [clock.offset_seconds for clock in clocks],
            "largest_clock_error_seconds": max(clock.error_seconds for clock in clocks),
        }
        self._write({"traceEvents": events, "displayTimeUnit": "ms", "metadata": metadata})

    def _write(self, content: dict[str, Any]) -> None:
        """Writes the file. A full disk is warned of: training has cost more than the file."""
        try:
            write_whole(self._path, json.dumps(content))
        except OSError as error:
            self._warn("the timeline %s could not be written: %s", error)

    def _warn(self, text: str, *more: object) -> None:
        tf.get_logger().warning(f"tfdist: {text}", self._path, *more)


def _check(strategy: tf.distribute.Strategy, model: keras.Model) -> None:
    """Raises ValueError where steps cannot be traced."""
    received = f"Received: a model under {type(strategy).__name__}"
    if not hasattr(strategy, "spans"):
        raise ValueError(
            "tfdist.callbacks.Timeline needs a model that was made in the scope of "
            "MirroredStrategy, MultiWorkerMirroredStrategy or HorovodStrategy of tfdist. "
            f"{received}"
        )
    if strategy.spans is not None:
        raise ValueError(
            "Only one tfdist.callbacks.Timeline at a time notes steps: give one, with all steps "
            f"that you want to see. Received: two of them. {received}"
        )
    if strategy.processes.may_change:
        raise ValueError(
            "The ranks of an elastic job repeat steps and change, so there is no Timeline of them: "
            f"leave out --min, or the callback. {received}"
        )
    if strategy.local is not None:
        raise ValueError(
            "Replicas that train apart (`local`) exchange outside of their steps, which "
            f"tfdist.callbacks.Timeline does not see: leave out one of the two. {received}"
        )
    if model.steps_per_execution > 1:
        raise ValueError(
            "tfdist.callbacks.Timeline needs to know when each step is called: compile with "
            f"steps_per_execution=1. Received: steps_per_execution={model.steps_per_execution}"
        )
