"""Stage 3 in sharded training: each replica gets its parts of the summed gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tfdist.engines.replica_context import static_id
from tfdist.options import Options
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.compression import CompressedExchange
from tfdist.step.exchange import Packing, timed_rows
from tfdist.step.sharding.accumulation import AccumulatedParts
from tfdist.step.sharding.exchange import reduce_scatter
from tfdist.step.sharding.parts import Parts


class PartialTotals:
    """Gives each replica its parts of the gradients' sums.

    Args:
        options: the bucket size.
        specs: the trainable variables' shapes and dtypes.
        paths: the trainable variables' paths.
        replicas: the number of replicas.

    Attributes:
        compressed: None; gradients are not compressed.
        accumulated: shape and dtype of what is accumulated for each variable.
        make_accumulator: makes what accumulates it.
    """

    compressed: CompressedExchange | None = None
    make_accumulator: Callable[..., GradientAccumulator] = GradientAccumulator

    def __init__(
        self, options: Options, specs: Sequence[tf.TensorSpec], paths: Sequence[str], replicas: int
    ):
        self._bucket_bytes = options.bucket_bytes
        self._specs = list(specs)
        self._paths = list(paths)
        self._parts = [Parts.of(spec, replicas) for spec in specs]
        self.accumulated = self._specs

    def packing(self, gradients: Sequence[Any], accumulates: bool) -> Packing:
        """The layout in which gradients are weighted and, if asked for, accumulated."""
        return Packing(gradients, self._specs, self._bucket_bytes if accumulates else 0)

    def to_accumulate(self, packing: Packing, packed: list) -> tuple[Packing, list]:
        """What is accumulated: the replica's own gradients."""
        return packing, packed

    def sum(self, packing: Packing, packed: list, number: tf.Tensor) -> list[Any]:
        """This replica's parts of the sums; None where there is no gradient."""
        del number
        return self._parts_of_sums(packing.unpack(packed))

    def _parts_of_sums(self, gradients: list[Any]) -> list[Any]:
        given = [place for place, gradient in enumerate(gradients) if gradient is not None]
        sparse = [p for p in given if isinstance(gradients[p], tf.IndexedSlices)]
        dense = [place for place in given if place not in sparse]
        self._check_tables(sparse)
        found: list[Any] = [None] * len(gradients)
        own = reduce_scatter(
            [gradients[place] for place in dense],
            [self._parts[place] for place in dense],
            self._bucket_bytes,
        )
        rows = timed_rows([gradients[place] for place in sparse])
        for place, part in zip(dense, own):
            found[place] = part
        for place, some in zip(sparse, rows):
            found[place] = self._parts[place].rows_of_part(some, static_id())
        return found

    def _check_tables(self, places: list[int]) -> None:
        wrong = [self._paths[place] for place in places if not self._parts[place].of_rows]
        if wrong:
            raise ValueError(
                "With `sharding` a table with sparse gradients is cut between its rows, and this "
                "one has too few rows for the number of replicas. Use fewer replicas, or "
                "`accumulation_steps`, which makes gradients dense. "
                f"Received: sparse gradients of {wrong}"
            )


class EarlyPartialTotals(PartialTotals):
    """Sums the gradients of each micro-batch, so that only parts of sums are accumulated."""

    def __init__(
        self, options: Options, specs: Sequence[tf.TensorSpec], paths: Sequence[str], replicas: int
    ):
        super().__init__(options, specs, paths, replicas)
        self.accumulated = [parts.spec for parts in self._parts]
        self.make_accumulator = functools.partial(AccumulatedParts, self._parts)

    def to_accumulate(self, packing: Packing, packed: list) -> tuple[Packing, list]:
        """This replica's parts of the sums over the replicas."""
        own = self._parts_of_sums(packing.unpack(packed))
        packing = Packing(own, self.accumulated, self._bucket_bytes)
        return packing, packing.pack(own)

    def sum(self, packing: Packing, packed: list, number: tf.Tensor) -> list[Any]:
        """The parts, which are sums over the replicas already."""
        del number
        return packing.unpack(packed)
