"""Checks that all processes read the same global batches, by comparing running checksums.

Each process keeps a part of every batch and drops the rest. So if data differ between processes,
the model is trained on a mixture that nobody asked for.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.engines.processes import Processes
from tfdist.processes import runs
from tfdist.processes.meeting import meet, names_of
from tfdist.processes.reading import REMEMBERED, Read, Watch

_ADVICE = (
    "The ranks do not read the same data. Every rank must be given the same global batches in the "
    "same order, of which it takes its part; where each was given a part of its own, most samples "
    "are left out: hand such data in with `strategy.distribute_datasets_from_function`. Where the "
    "data depend on random numbers, call `keras.utils.set_random_seed` with the same number in all "
    "ranks."
)


_CHECKSUMS = {
    "sizes": "numbers of samples",
    "targets": "targets or sample weights",
    "inputs": "inputs",
}


class Comparison:
    """Compares what the processes have read of the data sets that were distributed last."""

    def __init__(self, processes: Processes):
        self._processes = processes
        self._watches: collections.deque[Watch] = collections.deque(maxlen=8)
        self._warned = False

    def watch(
        self, dataset: tf.data.Dataset, length_is_known: bool, function: Callable[[Any], Any]
    ) -> tf.data.Dataset:
        """Compares `dataset` from now on; called by all processes. See `Watch.on`."""
        self._watches.append(Watch())
        return self._watches[-1].on(dataset, length_is_known, function)

    def compare_reading(self, what: str) -> None:
        """Called in loops of the user's own, by all processes after the same numbers of batches.

        Args:
            what: what this process has read.

        Raises:
            ValueError: in all processes, when one of them does something else.
            RuntimeError: as `compare`.
        """
        if self._watches and not runs.is_running():
            meet(self._processes, what, {})
            self.compare()

    def compare_inputs(self, checksums: list[int]) -> None:
        """Warns, once, when the inputs of a single batch differ.

        Args:
            checksums: those of all processes.
        """
        differs = [rank for rank, one in enumerate(checksums) if one != checksums[0]]
        if differs and not self._warned:
            self._warn(f"{_ADVICE} Received: other inputs in {names_of(differs)} than in rank 0")

    def compare(self) -> None:
        """Called by all processes, between steps.

        Raises:
            RuntimeError: in all processes, when the data of one process have ended before the data
                of the others, or when the batches differ in targets, sample weights or numbers of
                samples. If only inputs differ, there is one warning.
        """
        if not self._watches:
            return
        own = [value for watch in self._watches for value in watch.latest()]
        shape = (-1, len(self._watches), len(Read()))
        latest = self._processes.all_gather(own).reshape(shape)
        if (latest == latest[0]).all():
            return
        common = []
        for index, watch in enumerate(tuple(self._watches)):
            reads = [Read(*row) for row in latest[:, index].tolist()]
            in_one_pass = len({read.number for read in reads}) == 1
            common.append(min(read.batches for read in reads) if in_one_pass else 0)
            if in_one_pass:
                self._check_ends(watch, reads)
        rows = [watch.after(range(n, n + 1))[0] for watch, n in zip(self._watches, common)]
        compared = self._processes.all_gather(np.ravel(rows).tolist()).reshape(shape)
        for watch, index, count in zip(tuple(self._watches), range(shape[1]), common):
            reads = [Read(*row) for row in compared[:, index].tolist()]
            kinds = [kind for kind in _CHECKSUMS if len({getattr(r, kind) for r in reads}) > 1]
            if count and kinds:
                self._report(watch, count, kinds)

    def _report(self, watch: Watch, count: int, kinds: list[str]) -> None:
        serious = [kind for kind in kinds if kind != "inputs"]
        if not serious and self._warned:
            return
        kind = (serious or kinds)[0]
        self._watches.remove(watch)
        counts = range(max(1, count - REMEMBERED + 1), count + 1)
        own = [int(getattr(read, kind)) for read in watch.after(counts)]
        columns = self._processes.all_gather(own)
        differs = columns != columns[0]
        first = counts[int(differs.any(axis=0).argmax())]
        message = (
            f"{_ADVICE} Received: other {_CHECKSUMS[kind]} in "
            f"{names_of(np.flatnonzero(differs.any(axis=1)).tolist())} than in rank 0, from batch "
            f"{first} on"
        )
        if serious:
            raise RuntimeError(message)
        self._warn(message)

    def _warn(self, message: str) -> None:
        self._warned = True
        tf.get_logger().warning(
            f"tfdist: {message}. (Where only random augmentation differs, this does no harm.)"
        )

    def _check_ends(self, watch: Watch, reads: list[Read]) -> None:
        most = max(read.batches for read in reads)
        short = [rank for rank, read in enumerate(reads) if read.ended and read.batches < most]
        if short:
            self._watches.remove(watch)
            raise RuntimeError(
                f"{_ADVICE} Received: data that ended in {names_of(short)} after "
                f"{', '.join(str(reads[rank].batches) for rank in short)} batches; another rank "
                f"has read {most}"
            )
