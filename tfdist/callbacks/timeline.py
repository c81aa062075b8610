"""The callback that writes what all replicas do in some steps into one file."""

from __future__ import annotations

import json
import numbers
import os
import pathlib
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.arguments import check_path, problem_with_file, shown
from tfdist.callbacks.trace import events_of
from tfdist.engines.clocks import Clock, clocks_of
from tfdist.processes.runs import raise_everywhere
from tfdist.step.spans import BEGIN, Point, Spans
from tfdist.watch.files import write_whole

LARGEST_ERROR = 1e-3
"""Up to which error clocks are compared, in seconds; above it there is a warning."""


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

    With `local` a step exchanges nothing. "exchange of the round", or "exchange of fragment 0" with
    its number, follows the step that its `step` names, beside the steps if they overlap. It ends
    when the replica has what the others have sent.

    In an elastic job the file has what those ranks have noted that are there at the end, by their
    ranks at the end. A step that was repeated after a loss is there once, as it was made last; a
    rank that joins has the steps that it has made. The `metadata` say which steps each rank has
    (`steps_of_ranks`), and how many groups there were while steps were noted (`memberships`).

    Under parameter servers the processes of the trace are the workers, by their indices, then the
    chief and the first parameter server. A worker's step has "pull", "wait for data", "compute",
    and "push"; with compression also "encode". An "update" is in the chief, or where workers make
    their updates themselves, on the parameter server; its `args` name the worker and the staleness.
    Steps are counted as Keras does, in the order in which gradients are used. Gradients that come
    to nothing are left out. Times are by the chief's clock. See the guide, "Parameter servers".

    The times are those of rank 0's clock. The `metadata` of the file have the offset of each rank's
    clock, and the largest error of these. On one machine both are 0, as ranks have one clock. On
    several machines the error is at most 1 ms where the ranks answer fast enough; else there is a
    warning.

    TensorFlow traces the steps anew when training begins and after the last of `steps`. In between,
    each step takes up to a tenth of a millisecond longer for each time that is noted, as what is
    timed waits until its begin is noted. Where kernels run on a GPU, times are those of the host.

    Give the callback to all ranks; rank 0 writes the file when training ends. If an exception ends
    training, there is no file. If the file cannot be written then, there is a warning; so there is
    if it replaces that of another `fit` with the same callback. If training ends before the last of
    `steps`, a warning and the `metadata` say which steps are there. With one replica the file is
    empty.

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
        if not is_pair or not all(map(_is_integer, steps)) or not 0 <= steps[0] < steps[1]:
            raise ValueError(
                "`steps` must be two integers: the first step, from 0, and a later one before "
                f"which to stop. Received: steps={shown(steps)}"
            )
        self._path = pathlib.Path(path)
        self._steps = int(steps[0]), int(steps[1])
        self._ended = 0
        self._earlier = 0  # the files that were written before this `fit`
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
        self._ended = 0
        if _has_servers(strategy):
            self._spans = strategy.note_spans(*self._steps)
            return
        self._spans = strategy.spans = Spans(*self._steps, strategy.processes.may_change)
        strategy.measure_steps(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Notes when Keras calls the step."""
        self._spans.begin_step(self._ended)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Ends the notes after the last of the steps, in all ranks after the same one."""
        self._spans.end_step()
        self._ended += 1
        if self._ended == self._steps[1]:
            self._stop()

    def _stop(self) -> None:
        strategy = self.model.distribute_strategy
        if _has_servers(strategy):
            strategy.server_spans = None
        elif strategy.spans is not None:
            strategy.spans = None
            strategy.measure_steps(self.model)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Gathers what all ranks have noted, and writes the file."""
        strategy = self.model.distribute_strategy
        self._stop()
        if _has_servers(strategy):
            of_servers: Any = self._spans
            self._finish([*of_servers.events(self._ended)], of_servers.metadata())
            return
        clocks, noted = self._gathered()
        if not strategy.is_chief:
            return
        events: list[dict[str, Any]] = []
        for rank, (own, clock) in enumerate(zip(noted, clocks)):
            events += events_of(rank, own.points, own.calls, round(1e9 * clock.offset_seconds))
        error = max(clock.error_seconds for clock in clocks)
        if error > LARGEST_ERROR:
            self._warn(
                "the clocks of the ranks in the timeline %s are aligned to "
                f"{1000 * error:.1f} ms, not to {1000 * LARGEST_ERROR:.0f} ms: ranks answered late"
            )
        metadata: dict[str, Any] = {
            "clock_offset_seconds": [clock.offset_seconds for clock in clocks],
            "largest_clock_error_seconds": error,
        }
        may_change = strategy.processes.may_change
        if may_change:
            metadata["memberships"] = 1 + max(own.changes for own in noted)
            metadata["steps_of_ranks"] = [own.steps for own in noted]
        is_alone = strategy.num_replicas_in_sync == 1 and not may_change
        self._finish(events, metadata, is_alone)

    def _finish(
        self, events: list[dict[str, Any]], metadata: dict[str, Any], is_alone: bool = False
    ) -> None:
        """Writes the file, and says what is not in it."""
        first, end = self._steps
        ended = max(first, min(end, self._ended))
        if is_alone:
            self._warn("there is one replica, so the timeline %s is empty")
        elif ended == first:
            self._warn(f"training ended before step {first}, so the timeline %s is empty")
        elif ended < end:
            there = (
                f"step {first}" if ended == first + 1 else f"the steps from {first} to {ended - 1}"
            )
            self._warn(f"training ended before step {ended}, so the timeline %s has only {there}")
        metadata = {"steps": [first, ended], **metadata}
        if self._earlier:
            self._warn(
                "the timeline %s is that of the last `fit`, in place of one before: give each "
                "`fit` a Timeline with a path of its own to keep both"
            )
            metadata["earlier_fits"] = self._earlier
        self._write({"traceEvents": events, "displayTimeUnit": "ms", "metadata": metadata})

    def _gathered(self) -> tuple[list[Clock], list[_Noted]]:
        """The clocks of all ranks, and what they have noted."""
        strategy = self.model.distribute_strategy
        own = json.dumps([self._spans.points, self._spans.calls, self._spans.changes])
        while True:
            clocks = clocks_of(strategy.engine, LARGEST_ERROR)
            texts = strategy.processes.all_gather_texts(own)
            if len(clocks) == len(texts):  # else a rank was lost between these; nobody joins here
                break
        is_group = strategy.processes.may_change
        return clocks, [
            _Noted.of(text, rank if is_group else None) for rank, text in enumerate(texts)
        ]

    def _write(self, content: dict[str, Any]) -> None:
        """Writes the file. A full disk is warned of: training has cost more than the file."""
        try:
            write_whole(self._path, json.dumps(content))
            self._earlier += 1
        except OSError as error:
            self._warn("the timeline %s could not be written: %s", error)

    def _warn(self, text: str, *more: object) -> None:
        tf.get_logger().warning(f"tfdist: {text}", self._path, *more)


class _Noted(NamedTuple):
    """What a rank has noted."""

    points: list[Point]
    calls: list[int]
    changes: int

    @classmethod
    def of(cls, text: str, replica: int | None) -> _Noted:
        """Reads `text`. Ranks of a group change their number: their only replica gets this one."""
        rows, calls, changes = json.loads(text)
        points = [Point(*row) for row in rows]
        if replica is not None:
            points = [point._replace(replica=replica) for point in points]
        return cls(points, calls, changes)

    @property
    def steps(self) -> list[int]:
        """The steps that the rank has made, and noted."""
        return sorted({point.step for point in self.points if point.name == BEGIN})


def _is_integer(value: object) -> bool:
    """Whether `value` is an integer, of Python or NumPy."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _has_servers(strategy: tf.distribute.Strategy) -> bool:
    """Whether steps run on workers of parameter servers."""
    return hasattr(strategy, "server_spans")


def _check(strategy: tf.distribute.Strategy, model: keras.Model) -> None:
    """Raises ValueError where steps cannot be traced."""
    received = f"Received: a model under {type(strategy).__name__}"
    noting = "server_spans" if _has_servers(strategy) else "spans"
    if not hasattr(strategy, noting):
        raise ValueError(
            "tfdist.callbacks.Timeline needs a model that was made in the scope of "
            "MirroredStrategy, MultiWorkerMirroredStrategy, HorovodStrategy or "
            f"ParameterServerStrategy of tfdist. {received}"
        )
    if getattr(strategy, noting) is not None:
        raise ValueError(
            "Only one tfdist.callbacks.Timeline at a time notes steps: give one, with all steps "
            f"that you want to see. Received: two of them. {received}"
        )
    if model.steps_per_execution > 1:
        raise ValueError(
            "tfdist.callbacks.Timeline needs to know when each step is called: compile with "
            f"steps_per_execution=1. Received: steps_per_execution={model.steps_per_execution}"
        )
