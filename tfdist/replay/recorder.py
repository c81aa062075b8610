"""Writes a record while a strategy trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf

import tfdist
from tfdist.parameter_server.contracts import ChiefStrategy, Schedule, Training
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.work_item import Compute, WorkItem
from tfdist.replay.events import End, Exhausted, Fit, Header, Run, Used
from tfdist.replay.log import Writer
from tfdist.replay.sums import checksum_of_batch, weights_of


class Recorder:
    """Writes a record; see `Journal`.

    Args:
        path: the path of the file.
        strategy: the strategy.

    Raises:
        OSError: when the file cannot be written.
    """

    reads_batches = True
    follows_record = False

    def __init__(self, path: str, strategy: ChiefStrategy):
        self._writer = Writer(path, header_of(strategy))
        self._is_begun = False

    @contextlib.contextmanager
    def fit(self, training: Training) -> Iterator[None]:
        """Notes how the `fit` ends."""
        self._is_begun = False
        try:
            yield
        except BaseException as error:
            self._end(End(type(error).__name__, None))
            raise
        if self._is_begun:
            self._end(End(None, weights_of(variables_of(training))))

    def _end(self, end: End) -> None:
        if self._is_begun:
            self._writer.write(end)

    def schedule(
        self,
        training: Training,
        source: Source,
        compute: Compute,
        make: Callable[[Compute], Schedule],
    ) -> Schedule:
        """Notes the weights at the beginning of the run."""
        del source
        variables = variables_of(training)
        if not self._is_begun:
            self._writer.write(Fit(description(variables)))
            self._is_begun = True
        version = training.strategy.version
        self._writer.write(Run(training.epoch, version, weights_of(variables)))

        def compute_and_check(item: WorkItem, read: Callable[[WorkItem], None]) -> None:
            compute(item, read)
            for batch in item.batches:
                batch.checksum = checksum_of_batch(batch.data)

        return make(compute_and_check)

    def note(
        self, action: str, items: Sequence[WorkItem], version: int, factor: float | None
    ) -> None:
        """Writes a line."""
        self._writer.write(used(action, items, version, factor))

    def exhausted(self) -> None:
        """Writes a line."""
        self._writer.write(Exhausted())


def header_of(strategy: ChiefStrategy) -> Header:
    """The header of a record of `strategy`."""
    return Header(
        workers=strategy.num_workers,
        ps=len(strategy.addresses["ps"]),
        options={
            "staleness": repr(list(strategy.policies.policies)),
            "input": strategy.input,
            **{name: repr(value) for name, value in strategy.options.get_config().items()},
        },
        threads=os.environ.get("TF_NUM_INTRAOP_THREADS"),
        versions={
            "tfdist": tfdist.__version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
    )


def used(action: str, items: Sequence[WorkItem], version: int, factor: float | None) -> Used:
    """The event that `Journal.note` tells of."""
    last, batches = items[-1], [batch for item in items for batch in item.batches]
    is_divided = batches[0].part is not None
    return Used(
        action,
        last.worker,
        last.version,
        version,
        version - last.version - (action == "update"),
        factor,
        batches[0].number if is_divided else last.number,
        [[batch.shard, batch.position, batch.index, batch.checksum] for batch in batches],
        [place for place, item in enumerate(items) if item.anew] or None,
    )


def variables_of(training: Training) -> list[keras.Variable]:
    """All variables that decide how training goes on: weights, seeds, the optimizers' state."""
    found = [*training.step.variables, *training.step.seeds]
    for optimizer in training.step.optimizers:
        found += optimizer.variables
    unique = {id(variable): variable for variable in found}
    return [v for v in unique.values() if v.dtype != "string"]


def description(variables: Sequence[keras.Variable]) -> list[list]:
    """Path, shape and dtype of each of `variables`."""
    return [[v.path, list(v.shape), str(v.dtype)] for v in variables]
