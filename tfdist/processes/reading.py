"""Running checksums of the batches that a process reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdist.data.batch_checksums import of_inputs, of_targets
from tfdist.step.weighting import batch_size
from tfdist.structures import Structure

# The first batch that differs can be named if it is at most this many batches back.
REMEMBERED = 4096
_MORE_THAN_BATCHES = 2**40
# The keys of the table that counts passes.
_COUNT, _NOT_READ, _HAS_BATCHES = np.int64(0), np.int64(1), np.int64(2)


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
