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

    Epochs may be shorter than that: what is told of them is of all calls since the word before. The
    first call of each epoch is left out of the rates, as it may be traced, and so is validation. As
    long as there is no other call, the rates that were told last stand.

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
        self._is_training = False  # `evaluate` alone has no epochs to tell
        self._has_warned = False
        self._epoch = self._called_steps = 0
        self._is_first = True
        self._rates: dict[str, float | None] = {}
        self._call_began = self._call_ended = self._told = 0.0
        # Those of the calls that are counted, since the rates were told last.
        self._seconds = self._inside = 0.0
        self._sums = _NOTHING
        # From where on calls are not counted yet: when, and what the parts were.
        self._from, self._before = 0.0, _NOTHING
        # After the first call of the epoch: how many steps it had, and how many there were in all.
        self._first_steps, self._steps_before = 0, 0.0

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Begins to measure."""
        self._parts = self.model.distribute_strategy.measure_parts(self.model)
        self._before = self._read()
        self._told = time.perf_counter()
        self._is_training = True

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes the epoch."""
        self._count()
        self._epoch, self._called_steps = epoch + 1, 0
        self._is_first = True

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Notes that Keras calls a step."""
        self._call_began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Tells the launcher, if it is time."""
        now = time.perf_counter()
        self._called_steps, self._call_ended = batch + 1, now
        if self._is_first:
            self._is_first = False
            self._from, self._before = now, self._read()
            self._first_steps, self._steps_before = batch + 1, self._before.steps
        else:
            self._inside += now - self._call_began
        self._tell_in_time()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Tells the launcher, if it is time: validation may take long."""
        if self._is_training:
            self._tell_in_time()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Tells the launcher, if it is time."""
        self._tell_in_time()

    def on_train_end(self, logs: dict | None = None) -> None:
        """Tells the launcher how far training is, and measures no longer."""
        self._tell()
        self._is_training = False
        self.model.distribute_strategy.stop_parts(self.model)

    def _read(self) -> Sums:
        return _NOTHING if self._parts is None else self._parts.read()

    def _count(self) -> None:
        """Counts the calls that have ended, but the first one of the epoch."""
        sums = self._read()
        new = (now - before for now, before in zip(sums, self._before))
        self._sums = Sums(*(old + more for old, more in zip(self._sums, new)))
        self._seconds += self._call_ended - self._from
        self._from, self._before = self._call_ended, sums

    def _tell_in_time(self) -> None:
        if time.perf_counter() - self._told >= status.SECONDS:
            self._tell()

    def _tell(self) -> None:
        """Tells the launcher. A full disk is warned of: it must not end training."""
        self._count()
        if self._seconds > 0 and self._parts is not None:
            self._rates = self._found_rates()
            self._seconds, self._inside, self._sums = 0.0, 0.0, _NOTHING
        try:
            status.write(self._folder, [self._own(), *self._workers()])
        except OSError as error:
            if not self._has_warned:
                tf.get_logger().warning(
                    "tfdist: what this process does cannot be shown by `tfdist run --watch`: %s",
                    error,
                )
            self._has_warned = True
        self._told = time.perf_counter()

    @property
    def _processes(self) -> Processes:
        return getattr(self.model.distribute_strategy, "processes", None) or OneProcess()

    def _found_rates(self) -> dict[str, float | None]:
        """Samples per second, and for which part of the time this rank waits for what."""
        sums, seconds = self._sums, self._seconds
        known = sums.compute + sums.exchange + sums.update
        data = others = None
        if sums.exchange or sums.update:  # replicas that train apart exchange elsewhere
            data, others = max(0.0, self._inside - known) / seconds, sums.exchange / seconds
        if self._processes.is_alone:
            others = None
        return {"samples": sums.samples / seconds, "data": data, "others": others}

    def _own(self) -> Status:
        """What this rank does."""
        has_workers = hasattr(self.model.distribute_strategy, "staleness_report")
        name = "chief" if has_workers else f"rank {self._processes.rank}"
        params = self.params or {}
        steps = params.get("steps")
        step = min(self._called_steps, steps or self._called_steps)
        if self._parts is not None and not self._is_first:  # the last call may make fewer steps
            made = self._first_steps + round(self._before.steps - self._steps_before)
            step = min(step, made)
        return Status(
            name,
            status.now(),
            self._epoch,
            step,
            epochs=params.get("epochs"),
            steps=steps,
            memory=resident_bytes(),
            **self._rates,
        )

    def _workers(self) -> list[Status]:
        """What the workers of a parameter server have done since training began."""
        report: Any = getattr(self.model.distribute_strategy, "staleness_report", dict)()
        workers = report.workers.items() if report else ()
        return [
            Status(f"worker {index}", status.now(), self._epoch, own.histogram.total())
            for index, own in workers
        ]


def live() -> list[keras.callbacks.Callback]:
    """The callback, where the launcher of this process looks; else nothing."""
    folder = os.environ.get(environment.WATCH)
    return [Live(folder)] if folder else []
