"""Writes a record while a strategy trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

import tfdist
from tfdist.parameter_server.step import Step
from tfdist.replay.journal import Journal
from tfdist.replay.log import End, Exhausted, Fit, Header, Run, Used, Writer
from tfdist.replay.sums import checksum_of_batch, weights_of


class Recorder(Journal):
    """Writes a record.

    Args:
        path: of its file.
        strategy: the strategy.

    Raises:
        OSError: when it cannot be written.
    """

    def __init__(self, path: str, strategy: Any):
        self._writer = Writer(path, header_of(strategy))
        self._is_begun = False

    @contextlib.contextmanager
    def fit(self, function: Any) -> Iterator[None]:
        """Notes how it ends."""
        self._is_begun = False
        try:
            yield
        except BaseException as error:
            self._end(End(type(error).__name__, None))
            raise
        if self._is_begun:
            self._end(End(None, weights_of(variables_of(function))))

    def _end(self, end: End) -> None:
        if self._is_begun:
            self._writer.write(end)

    def steps(
        self, function: Any, kind: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Notes what they begin with."""
        variables = variables_of(function)
        if not self._is_begun:
            self._writer.write(Fit(description(variables)))
            self._is_begun = True
        version = function.strategy.version
        self._writer.write(Run(function.epoch, version, weights_of(variables)))
        workers, source, compute = arguments

        def compute_and_check(step: Step, read: Callable[[Step], None]) -> None:
            compute(step, read)
            for batch in step.batches:
                batch.checksum = checksum_of_batch(batch.data)

        return kind(workers, source, compute_and_check, **options)

    def note(self, action: str, steps: Sequence[Step], version: int, factor: float | None) -> None:
        """Writes a line."""
        self._writer.write(used(action, steps, version, factor))

    def exhausted(self) -> None:
        """Writes a line."""
        self._writer.write(Exhausted())


def header_of(strategy: Any) -> Header:
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


def used(action: str, steps: Sequence[Step], version: int, factor: float | None) -> Used:
    """The event that `Journal.note` tells of."""
    last, batches = steps[-1], [batch for step in steps for batch in step.batches]
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
        [place for place, step in enumerate(steps) if step.anew] or None,
    )


def variables_of(function: Any) -> list[keras.Variable]:
    """All numbers that decide how training goes on: weights, seeds, the optimizers' state."""
    found = [*function.step.variables, *function.step.seeds]
    for optimizer in function.step.optimizers:
        found += optimizer.variables
    unique = {id(variable): variable for variable in found}
    return [v for v in unique.values() if v.dtype != "string"]


def description(variables: Sequence[keras.Variable]) -> list[list]:
    """Path, shape and dtype of each of `variables`."""
    return [[v.path, list(v.shape), str(v.dtype)] for v in variables]
