"""The callback with which `tfdist run --watch` sees what a rank does."""

from __future__ import annotations

import os
import time
from typing import Any

import keras
import tensorflow as tf

from tfdist import environment
from tfdist.engines.processes import OneProcess, Processes
from tfdist.step.parts import StepParts, Sums
from tfdist.watch import status
from tfdist.watch.measuring import resident_bytes
from tfdist.watch.status import Status

_NOTHING = Sums(0.0, 0.0, 0.0, 0.0, 0.0)


class Live(keras.callbacks.Callback):
    """Tells the launcher twice a second what this rank does, without a message to other ranks.

    Args:
        folder: in which the launcher looks.
    """

    decides_in_batches = False
    changes_variables = False
    saves_alone = False

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._parts: StepParts | None = None
        self._epoch = 0
        self._is_first = True
        self._has_warned = False
        self._begin(0)

    def _begin(self, step: int) -> None:
        """Begins another interval after this many steps of the epoch."""
        self._told = self._called = time.perf_counter()
        self._step = step
        self._calls = 0.0
        self._before = _NOTHING if self._parts is None else self._parts.read()

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to measure."""
        self._parts = self.model.distribute_strategy.measure_parts(self.model)
        self._begin(0)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch."""
        self._epoch = epoch + 1
        self._is_first = True

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Notes that Keras calls a step."""
        self._called = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Tells the launcher, if it is time; the first call is left out, as it may be traced."""
        if self._is_first:
            self._is_first = False
            self._begin(batch + 1)
            return
        now = time.perf_counter()
        self._calls += now - self._called
        if now - self._told >= status.SECONDS:
            self._tell([self._own(batch + 1, now - self._told), *self._workers()])
            self._begin(batch + 1)

    def _tell(self, statuses: list[Status]) -> None:
        """Tells the launcher. A full disk is warned of: it must not end training."""
        try:
            status.write(self._folder, statuses)
        except OSError as error:
            if not self._has_warned:
                tf.get_logger().warning(
                    "tfdist: what this process does cannot be shown by `tfdist run --watch`: %s",
                    error,
                )
            self._has_warned = True

    def _own(self, called: int, seconds: float) -> Status:
        """What this rank does.

        Args:
            called: how many steps of the epoch Keras has called. The last call may make fewer.
            seconds: since the launcher was told last.
        """
        strategy = self.model.distribute_strategy
        processes: Processes = getattr(strategy, "processes", None) or OneProcess()
        has_workers = hasattr(strategy, "staleness_report")
        name = "chief" if has_workers else f"rank {processes.rank}"
        params = self.params or {}
        steps = params.get("steps")
        step = min(called, steps or called)
        common: dict[str, Any] = {
            "epochs": params.get("epochs"),
            "steps": steps,
            "memory": resident_bytes(),
        }
        if self._parts is None:
            return Status(name, status.now(), self._epoch, step, **common)
        sums = Sums(*(b - a for a, b in zip(self._before, self._parts.read())))
        step = min(step, self._step + round(sums.steps))
        known = sums.compute + sums.exchange + sums.update
        data = others = None
        if sums.exchange or sums.update:  # replicas that train apart exchange elsewhere
            data, others = max(0.0, self._calls - known) / seconds, sums.exchange / seconds
        if processes.is_alone:
            others = None
        common |= {"samples": sums.samples / seconds, "data": data, "others": others}
        return Status(name, status.now(), self._epoch, step, **common)

    def _workers(self) -> list[Status]:
        """What the workers of a parameter server have done since training began."""
        report: Any = getattr(self.model.distribute_strategy, "staleness_report", dict)()
        workers = report.workers.items() if report else ()
        return [
            Status(f"worker {index}", status.now(), self._epoch, own.histogram.total())
            for index, own in workers
        ]

    def on_train_end(self, logs: dict | None = None) -> None:
        """Measures no longer."""
        self.model.distribute_strategy.stop_parts(self.model)


def live() -> list[keras.callbacks.Callback]:
    """The callback, where the launcher of this process looks; else nothing."""
    folder = os.environ.get(environment.WATCH)
    return [Live(folder)] if folder else []
