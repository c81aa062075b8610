"""The callback that shows a run: as a page, in TensorBoard, in `History`, and in a line."""

from __future__ import annotations

import copy
import functools
import math
import os
import pathlib
import time
from typing import Any

import keras
import tensorflow as tf

from tfdist.arguments import check_path, problem_with_file
from tfdist.callbacks.compression_monitor import traffic_of
from tfdist.callbacks.summaries import Summaries
from tfdist.engines.processes import OneProcess, Processes
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.processes.runs import raise_everywhere
from tfdist.step.model_optimizers import optimizers_of
from tfdist.watch import page
from tfdist.watch.gathering import gathered
from tfdist.watch.measuring import Measuring, environment_of
from tfdist.watch.numbers import Epoch, Run, Traffic, WorkerNumbers

# For how long there is no other page at the end of an epoch: so many times as long as one took.
# Epochs may take less time than a page, and after thousands of them a page takes seconds.
PAUSE = 20


class RunReport(keras.callbacks.Callback):
    """Shows what a run does: where a step's time goes on each rank, and what it costs.

    `strategy.callbacks(report="report.html")` contains this callback. The file needs no network: it
    has curves of all logs, the parts of a step on each rank, the slowest rank and what the others
    wait for it, bytes with and without compression, staleness, members, memory, traffic of the
    machines, and the environment. Rank 0 writes it at the end of each epoch, as a whole; more
    seldom where that would take more than a twentieth of the time, as after thousands of epochs or
    in epochs of milliseconds. The last page is written when training ends.

    These keys come into the logs, and so into `History` and TensorBoard, each a mean over ranks and
    steps. A metric of yours that has such a name keeps its values. The parts of a step are in
    seconds:

    - `compute_seconds`: from the batch to the gradients;
    - `exchange_seconds`: from the gradients to their sums, as far as nothing hides the exchange;
    - `update_seconds`: from the sums to the updated weights;
    - `data_seconds`: waiting for data, and what the call of a step takes;
    - `between_seconds`: from a step to the next one, as for callbacks;
    - `step_seconds`: their sum;
    - `slowest_rank`, its number, and `waiting`, the part of the step for which the other ranks
      wait for it on average, from 0 to 1: with several ranks. If training is verbose, rank 0 prints
      this, too;
    - `sent_bytes`: what a replica hands to the exchange for an update.

    With the option `local`, with parameter servers, and where XLA compiles the whole step of one
    replica (`jit_compile=True`), `rest_seconds` stands for the parts that are not known there.
    Replicas of one process count as one rank: it computes until the last one has computed
    (`StragglerMonitor` and `Timeline` tell them apart). With `sharding` a part of the exchange is
    in the update. The first call of each epoch is left out, as it may be traced. Where kernels run
    on a GPU, times are those of the host.

    Times are read in the step, and summed up there, so the step is traced anew when training begins
    and ends. At the end of an epoch the ranks sum a table of what they have measured, with a
    kilobyte for each rank. Give the callback to all ranks. A `fit` replaces the file of the `fit`
    before: give each one a callback with a path of its own to keep both.

    Args:
        path: of the file; its folder is made. None for no file.
        log_dir: a folder for TensorBoard, to which rank 0 writes the numbers of each rank. None for
            none.

    Raises:
        TypeError: for a path that is none.
        ValueError: at the beginning of training, for a file or a folder that cannot be written, and
            for a model without a strategy of tfdist.

    Example:

    >>> import keras, numpy as np, os, tempfile, tfdist
    >>> strategy = tfdist.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer="sgd", loss="mse")
    >>> x = np.ones((8, 1))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "report.html")
    ...     callbacks = strategy.callbacks(report=path)
    ...     history = model.fit(x, x, batch_size=2, verbose=0, callbacks=callbacks).history
    ...     with open(path) as file:
    ...         "<h2>Memory</h2>" in file.read()
    True
    >>> "compute_seconds" in history
    True
    """

    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(
        self, path: str | os.PathLike | None = None, log_dir: str | os.PathLike | None = None
    ) -> None:
        super().__init__()
        if path is not None:
            check_path("path", path)
        self._path = None if path is None else pathlib.Path(path)
        self._summaries = Summaries(log_dir, "ranks")
        self._measuring: Measuring
        self._run: Run
        self._fits = 0
        self._batch_logs: dict = {}
        self._staleness: Any = None
        self._next = 0  # when the page may be written again; whole, as each rank has its own clock

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to measure.

        Raises:
            ValueError: for a file or a folder that cannot be written, and for a model without a
                strategy of tfdist.
        """
        strategy = self.model.distribute_strategy
        if not hasattr(strategy, "measure_parts"):
            raise ValueError(
                "tfdist.callbacks.RunReport needs a model that was made in the scope of a strategy "
                f"of tfdist. Received: a model under {type(strategy).__name__}"
            )
        parts = strategy.measure_parts(self.model)
        self._measuring = Measuring(parts, self.model.steps_per_execution)
        self._run = Run(
            title=f"Training {self.model.name}",
            began=time.time(),
            wanted=(self.params or {}).get("epochs"),
            environment=environment_of(strategy, self.model),
            left_out=_left_out(strategy, parts is not None),
            earlier=self._fits,
        )
        self._fits += 1
        self._next = 0
        raise_everywhere(self._processes, self._problem(), "begin the report")

    def _problem(self) -> Exception | None:
        """Why this rank cannot write what it is to write."""
        if not self.model.distribute_strategy.is_chief:
            return None
        error: Exception | None = None
        if self._path is not None:
            error = problem_with_file("report", "report", self._path, makes_folder=True)
            error = error or self._written()
        return error or self._summaries.problem()

    @property
    def _processes(self) -> Processes:
        return getattr(self.model.distribute_strategy, "processes", None) or OneProcess()

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins anew."""
        self._measuring.begin_epoch()
        report = getattr(self.model.distribute_strategy, "staleness_report", None)
        self._staleness = None if report is None else copy.deepcopy(report())

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Notes that Keras calls a step."""
        self._measuring.begin_step()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Notes that the call has returned."""
        self._measuring.end_step(batch)
        self._batch_logs = logs or {}

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Gathers what the ranks have measured, and shows it."""
        logs = {} if logs is None else logs  # what later callbacks add to it is shown as well
        found = Epoch(
            number=epoch,
            ended=time.time(),
            logs=logs,
            ranks=gathered(self._processes, self._measuring.numbers()),
            traffic=self._traffic(),
            workers=self._workers(),
        )
        self._run.epochs.append(found)
        self._run.metrics.update(self._batch_logs)
        for name, value in found.history().items():
            logs.setdefault(name, value)
        if not self.model.distribute_strategy.is_chief:
            return
        slowest = found.slowest()
        if slowest is not None and (self.params or {}).get("verbose"):
            print(f"\n{slowest}")
        self._summaries.write(functools.partial(_write_scalars, found))
        if time.monotonic_ns() >= self._next:
            self._write()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Measures no longer."""
        self.model.distribute_strategy.stop_parts(self.model)
        self._run.has_ended = True
        self._write()

    def _write(self) -> None:
        """Writes the page. A full disk is warned of: training has cost more than the page."""
        if self.model.distribute_strategy.is_chief and (error := self._written()):
            tf.get_logger().warning(
                "tfdist: the report %s could not be written, and is the last one: %s",
                self._path,
                error,
            )

    def _written(self) -> OSError | None:
        """Writes the page; returns why it could not be written."""
        if self._path is None:
            return None
        began = time.monotonic_ns()
        try:
            page.write(self._run, self._path)
        except OSError as error:
            return error
        # The first page has no epoch, and takes longer, as nothing is loaded: it does not count.
        if self._run.epochs:
            self._next = began + PAUSE * (time.monotonic_ns() - began)
        return None

    def _traffic(self) -> Traffic | None:
        """The bytes of an update; None where no replicas exchange gradients."""
        strategy = self.model.distribute_strategy
        if strategy.num_replicas_in_sync == 1 or not strategy.replicas_hold_model:
            return None
        found = [
            traffic_of(optimizer)
            for optimizer in optimizers_of(self.model).values()
            if isinstance(optimizer, DistributedOptimizer) and optimizer.built
        ]
        if not found:
            return None
        return Traffic(sum(one.sent for one in found), sum(one.dense for one in found))

    def _workers(self) -> dict[int, WorkerNumbers]:
        """What the workers of a parameter server have done in the epoch."""
        if self._staleness is None:
            return {}
        report = self.model.distribute_strategy.staleness_report().since(self._staleness)
        found = {}
        for index, own in report.workers.items():
            updates = own.histogram.total()
            total = sum(staleness * count for staleness, count in own.histogram.items())
            mean = total / max(1, updates)
            found[index] = WorkerNumbers(updates, mean, own.dropped.total(), own.waits)
        return found


def _write_scalars(epoch: Epoch) -> None:
    """Writes the numbers of each rank for TensorBoard."""
    values = {f"run/{name}": value for name, value in epoch.history().items()}
    for number, rank in enumerate(epoch.ranks):
        if rank is not None:
            own = {f"{name}_seconds": seconds for name, seconds in rank.parts().items()}
            own |= {"memory_bytes": rank.memory, "peak_memory_bytes": rank.peak_memory}
            values |= {f"rank_{number}/{name}": value for name, value in own.items()}
    for name, value in values.items():
        if math.isfinite(value):
            tf.summary.scalar(name, value, step=epoch.number)


def _left_out(strategy: tf.distribute.Strategy, has_parts: bool) -> list[str]:
    """What cannot be measured under `strategy`, in sentences."""
    found = []
    if not strategy.replicas_hold_model:
        found.append(
            "Parts of a step, and its bytes: steps run on the workers of parameter servers. The "
            "times are those of the chief, which hands out the work."
        )
    elif not has_parts:
        found.append("Parts of a step: XLA compiles it as a whole (`jit_compile=True`).")
    elif strategy.num_replicas_in_sync > 1 and getattr(strategy, "local", None) is not None:
        found.append(
            "Exchange and update: with `local` they are outside of the step, so they are in the "
            "rest. Bytes are those of a round."
        )
    elif strategy.num_replicas_in_sync == 1:
        found.append("Bytes: there is one replica, which exchanges nothing.")
    if has_parts and len(strategy.extended.worker_devices) > 1:
        found.append(
            "Replicas of one process one by one: StragglerMonitor and Timeline tell them apart."
        )
    if not tf.config.list_logical_devices("GPU"):
        found.append("Memory of GPUs: there are none.")
    return found
