"""Checks that all processes read the same global batches, by comparing running checksums.

Each process keeps a part of every batch and drops the rest. So if data differ between processes,
the model is trained on a mixture that nobody asked for.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist.engines.processes import Processes
from tfdist.processes import runs
from tfdist.processes.batch_checksums import of_inputs, of_targets
from tfdist.processes.meeting import meet, names_of
from tfdist.step.weighting import batch_size
from tfdist.structures import Structure

# The first batch that differs can be named if it is at most this many batches back.
REMEMBERED = 4096
_MORE_THAN_BATCHES = 2**40
# The keys of the table that counts passes.
_COUNT, _NOT_READ, _HAS_BATCHES = np.int64(0), np.int64(1), np.int64(2)
_ADVICE = (
    "The ranks do not read the same data. Every rank must be given the same global batches in the "
    "same order, of which it takes its part; where each was given a part of its own, most samples "
    "are left out: hand such data in with `strategy.distribute_datasets_from_function`. Where the "
    "data depend on random numbers, call `keras.utils.set_random_seed` with the same number in all "
    "ranks."
)


class Read(NamedTuple):
    """What a data set has given so far in one pass.

    Attributes:
        number: how many passes were begun.
        batches: how many batches were read.
        ended: whether the data have ended.
        sizes: a checksum of the numbers of samples of all these batches.
        targets: a checksum of some of the targets and sample weights.
        inputs: a checksum of some of the inputs.
    """

    number: int = 0
    batches: int = 0
    ended: int = 0
    sizes: int = 0
    targets: int = 0
    inputs: int = 0


# The new checksum is the previous one times a factor, plus the contribution of the new batch.
_FACTORS = tuple(Read(1, 1, 1, *[6_364_136_223_846_793_005] * 3))
_CHECKSUMS = {
    "sizes": "numbers of samples",
    "targets": "targets or sample weights",
    "inputs": "inputs",
}


class Watch:
    """Running checksums of the batches that a data set gives.

    The checksums are in a table: in a strategy's scope a variable would become distributed.
    """

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("CPU:0"):
            self._table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, list(Read()))
            self._passes = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def on(
        self, dataset: tf.data.Dataset, length_is_known: bool, function: Callable[[Any], Any]
    ) -> tf.data.Dataset:
        """Maps `dataset` by `function`, and notes the batches as they pass.

        Args:
            dataset: the batches.
            length_is_known: whether the number of batches is known; if not, the end is noted too.
            function: a function of a batch. Notes and function share one step of the pipeline, as
                the step costs more than the notes.

        Returns:
            A data set of the results of `function`.
        """

        @tf.autograph.experimental.do_not_convert
        def note(row: tf.Tensor, batch: Structure) -> tuple[tf.Tensor, Structure]:
            row = row * _FACTORS + _news(batch, begun=self._begun(row[0]))
            if not length_is_known:
                with tf.control_dependencies([self._passes.insert(_HAS_BATCHES, 1)]):
                    row = tf.identity(row)
            return self._noted(row), function(batch)

        @tf.autograph.experimental.do_not_convert
        def begin(zero: tf.Tensor) -> tf.data.Dataset:
            with tf.control_dependencies([self._passes.insert(_HAS_BATCHES, 0)]):
                return tf.data.Dataset.from_tensors(tf.identity(zero)).repeat()

        @tf.autograph.experimental.do_not_convert
        def note_end(zero: tf.Tensor) -> tf.data.Dataset:
            latest = self._latest()
            is_empty = self._passes.lookup(_HAS_BATCHES) == 0
            empty = [self._begun(tf.where(is_empty, zero, 1)), *Read(ended=1)[1:]]
            row = tf.where(is_empty, empty, latest + list(Read(ended=1)))
            with tf.control_dependencies([self._noted(row)]):
                return dataset.take(tf.identity(zero)).scan(zero, lambda n, b: (n, function(b)))

        zero = tf.data.Dataset.from_tensors(tf.zeros([], tf.int64))
        # The pass is counted at its first batch. Keras makes iterators that it never asks for one.
        unbegun = tf.constant(list(Read()), tf.int64)
        if length_is_known:
            return dataset.scan(unbegun, note)
        # `dataset` is not in a function of `flat_map`: its iterator must be made when this one is,
        # because `shuffle` counts them.
        begun = tf.data.Dataset.zip((zero.flat_map(begin), dataset))
        noted = begun.scan(unbegun, lambda row, element: note(row, element[1]))
        return noted.concatenate(zero.flat_map(note_end))

    def latest(self) -> list[int]:
        """The last `Read`; may be ahead of training, as batches are read in advance."""
        return self._latest().numpy().tolist()

    def after(self, counts: range) -> list[Read]:
        """The `Read` after each of these numbers of batches."""
        keys = [count % REMEMBERED for count in counts]
        return [Read(*row) for row in self._table.lookup(tf.constant(keys, tf.int64)).numpy()]

    def _begun(self, number: tf.Tensor) -> tf.Tensor:
        """The number of a pass that begins with this batch; 0 if the pass has a `number` already.

        This takes no `tf.cond`, which costs more than writing what nobody reads.
        """
        begins = number == 0
        known = self._passes.lookup(_COUNT)
        with tf.control_dependencies([known]):
            inserted = self._passes.insert(tf.where(begins, _COUNT, _NOT_READ), known + 1)
        with tf.control_dependencies([inserted]):
            return tf.where(begins, known + 1, 0)

    def _noted(self, row: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([self._table.insert(row[1] % REMEMBERED, row)]):
            return tf.identity(row)

    def _latest(self) -> tf.Tensor:
        rows = self._table.lookup(tf.range(REMEMBERED, dtype=tf.int64))
        return rows[tf.argmax(rows[:, 0] * _MORE_THAN_BATCHES + rows[:, 1])]


def _news(batch: Structure, begun: tf.Tensor) -> tf.Tensor:
    """What one more batch adds to a `Read`: a vector of int64.

    Args:
        batch: the batch.
        begun: the number of the pass, if this batch is its first; otherwise 0.
    """
    size = batch_size(batch)
    if isinstance(batch, tuple) and len(batch) <= 3:
        inputs, targets, weights = keras.utils.unpack_x_y_sample_weight(batch)
    else:
        inputs, targets, weights = batch, None, None
    zero, one = tf.zeros([], tf.int64), tf.ones([], tf.int64)
    news = Read(
        number=begun,
        batches=one,
        ended=zero,
        sizes=zero if size is None else tf.cast(size, tf.int64),
        targets=of_targets((targets, weights)),
        inputs=of_inputs(inputs),
    )
    return tf.stack(list(news))


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
        shape = (self._processes.size, len(self._watches), len(Read()))
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
