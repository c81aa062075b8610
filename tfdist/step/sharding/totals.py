"""Stage 3 in sharded training: each replica gets its parts of the summed gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.engines.replica_context import static_id
from tfdist.options import Options
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.compression import CompressedExchange
from tfdist.step.exchange import Packing, timed_rows
from tfdist.step.sharding.accumulation import AccumulatedParts
from tfdist.step.sharding.exchange import reduce_scatter
from tfdist.step.sharding.parts import NOTHING, Parts


class OwnGradients:
    """What accumulates each replica's own gradients, and compresses nothing.

    Args:
        options: the bucket size.
        specs: the trainable variables' shapes and dtypes.

    Attributes:
        compressed: None; gradients are not compressed.
        accumulated: shape and dtype of what is accumulated for each variable.
        make_accumulator: makes what accumulates it.
    """

    compressed: CompressedExchange | None = None
    make_accumulator: Callable[..., GradientAccumulator] = GradientAccumulator

    def __init__(self, options: Options, specs: Sequence[tf.TensorSpec]):
        self._bucket_bytes = options.bucket_bytes
        self._specs = list(specs)
        self.accumulated = self._specs

    def packing(self, gradients: Sequence[Any], accumulates: bool) -> Packing:
        """The layout in which gradients are weighted and, if asked for, accumulated."""
        return Packing(gradients, self._specs, self._bucket_bytes if accumulates else 0)

    def to_accumulate(self, packing: Packing, packed: list) -> tuple[Packing, list]:
        """What is accumulated: the replica's own gradients."""
        return packing, packed


class PartialTotals(OwnGradients):
    """Gives each replica its parts of the gradients' sums.

    Args:
        options: the bucket size.
        specs: the trainable variables' shapes and dtypes.
        paths: the trainable variables' paths.
        replicas: the number of replicas.
        in_parts: how variables are divided whose gradients, and `specs`, are parts of sums already;
            by their positions.
    """

    def __init__(
        self,
        options: Options,
        specs: Sequence[tf.TensorSpec],
        paths: Sequence[str],
        replicas: int,
        in_parts: Mapping[int, Parts] = NOTHING,
    ):
        super().__init__(options, specs)
        self._paths = list(paths)
        self._summed = frozenset(in_parts)
        self._parts = [in_parts.get(p) or Parts.of(spec, replicas) for p, spec in enumerate(specs)]

    def sum(self, packing: Packing, packed: list, number: tf.Tensor) -> list[Any]:
        """This replica's parts of the sums; None where there is no gradient."""
        del number
        return self._parts_of_sums(packing.unpack(packed))

    def _parts_of_sums(self, gradients: list[Any]) -> list[Any]:
        own = [place for place in range(len(gradients)) if place not in self._summed]
        given = [place for place in own if gradients[place] is not None]
        sparse = [p for p in given if isinstance(gradients[p], tf.IndexedSlices)]
        dense = [place for place in given if place not in sparse]
        check_tables([self._paths[p] for p in sparse], [self._parts[p] for p in sparse])
        found = [g if place in self._summed else None for place, g in enumerate(gradients)]
        sums = reduce_scatter(
            [gradients[place] for place in dense],
            [self._parts[place] for place in dense],
            self._bucket_bytes,
        )
        rows = timed_rows([gradients[place] for place in sparse])
        for place, part in zip(dense, sums):
            found[place] = part
        for place, some in zip(sparse, rows):
            found[place] = self._parts[place].rows_of_part(some, static_id())
        return found


def check_tables(paths: Sequence[str], parts: Sequence[Parts]) -> None:
    """Raises ValueError for sparse gradients of tables that are not cut between their rows."""
    wrong = [path for path, one in zip(paths, parts) if not one.of_rows]
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
        self,
        options: Options,
        specs: Sequence[tf.TensorSpec],
        paths: Sequence[str],
        replicas: int,
        in_parts: Mapping[int, Parts] = NOTHING,
    ):
        super().__init__(options, specs, paths, replicas, in_parts)
        self.accumulated = [parts.spec for parts in self._parts]
        self.make_accumulator = functools.partial(AccumulatedParts, self._parts)

    def packing(self, gradients: Sequence[Any], accumulates: bool) -> Packing:
        """Each gradient by itself, as the sums travel in buckets of their own."""
        del accumulates
        return Packing(gradients, self._specs, 0)

    def to_accumulate(self, packing: Packing, packed: list) -> tuple[Packing, list]:
        """This replica's parts of the sums over the replicas."""
        own = self._parts_of_sums(packing.unpack(packed))
        packing = Packing(own, self.accumulated, self._bucket_bytes)
        return packing, packing.pack(own)

    def sum(self, packing: Packing, packed: list, number: tf.Tensor) -> list[Any]:
        """The parts, which are sums over the replicas already."""
        del number
        return packing.unpack(packed)
