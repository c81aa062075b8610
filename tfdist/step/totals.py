"""The way of the gradients between replicas: packed, compressed or not, summed, and unpacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compression.base import nbytes
from tfdist.options import Options
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.compression import CompressedExchange
from tfdist.step.exchange import Packing, enough
from tfdist.step.tables import Tables


class Totals:
    """Sums gradients over the replicas.

    Made in the strategy's scope.

    Args:
        options: bucket size and compression.
        specs: the trainable variables' shapes and dtypes.
        paths: the trainable variables' paths.
        fragments: for each variable a number; only those of equal numbers are summed together. None
            for one number.
        tables: tells, when a step is traced, what may travel in place of the rows of sparse
            gradients; see `row_tables.tables_of`.

    Attributes:
        compressed: the part that compresses; None without compression.
        accumulated: shape and dtype of what is accumulated for each trainable variable.
        make_accumulator: makes what accumulates it.
    """

    make_accumulator: Callable[..., GradientAccumulator] = GradientAccumulator

    def __init__(
        self,
        options: Options,
        specs: Sequence[tf.TensorSpec],
        paths: Sequence[str],
        fragments: Sequence[int] | None = None,
        tables: Callable[[], Tables] = lambda: Tables.NONE,
    ):
        self._tables = tables
        self._bucket_bytes = options.bucket_bytes
        self._specs = self.accumulated = list(specs)
        self.compressed: CompressedExchange | None = None
        if options.compression is not None:
            self.compressed = CompressedExchange(
                options.compression, specs, paths, options.bucket_bytes, options.seed, fragments
            )

    def packing(self, gradients: Sequence[Any], accumulates: bool) -> Packing:
        """The layout in which gradients are weighted and, if asked for, accumulated.

        Args:
            gradients: one per trainable variable: tensors, `tf.IndexedSlices`, or None.
            accumulates: whether gradients are accumulated.
        """
        if accumulates:
            return Packing(gradients, self._specs, self._bucket_bytes)
        if self.compressed is not None:
            return Packing(gradients, self._specs, 0)
        return self._on_the_way(gradients)

    def to_accumulate(self, packing: Packing, packed: list) -> tuple[Packing, list]:
        """What is accumulated: the replica's own gradients."""
        return packing, packed

    def sum(self, packing: Packing, packed: list, number: tf.Tensor) -> list[Any]:
        """The global gradients; None where there is none; called in replica context.

        Args:
            packing: the layout, from `packing`.
            packed: the packed gradients.
            number: int64 scalar, the number of updates so far.
        """
        tables = self._tables()
        if self.compressed is None:
            return packing.unpack(packing.sum(packed, tables))
        gradients = packing.unpack(packed)
        if tables is Tables.SUMS:
            gradients = self.compressed.with_small_tables(gradients)
        sums = self.compressed(gradients, number)
        rest = [None if index in sums else value for index, value in enumerate(gradients)]
        others = self._on_the_way(rest)
        coders = self.compressed.row_coders(number)
        totals = others.unpack(others.sum(others.pack(rest), tables, coders))
        return [sums.get(index, total) for index, total in enumerate(totals)]

    def _on_the_way(self, gradients: Sequence[Any]) -> Packing:
        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return Packing(gradients, self._specs, 0)
        total = sum(
            nbytes(spec)
            for spec, gradient in zip(self._specs, gradients)
            if gradient is not None and not isinstance(gradient, tf.IndexedSlices)
        )
        return Packing(gradients, self._specs, enough(total, self._bucket_bytes))
