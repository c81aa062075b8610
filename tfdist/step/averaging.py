"""What the replicas average, and when: the interface, and `averaging_of`, which chooses."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from tfdist.options import Options
from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.compression import CompressedExchange
from tfdist.step.exchange import Packing
from tfdist.step.sharding.owned_totals import TotalsOfOwned
from tfdist.step.sharding.parts import NOTHING, Parts
from tfdist.step.sharding.totals import EarlyPartialTotals, PartialTotals
from tfdist.step.tables import Tables
from tfdist.step.totals import Totals


class Averaging(Protocol):
    """Stage 3: what an update gets from the gradients of all replicas.

    Attributes:
        compressed: the part that compresses; None without compression.
        accumulated: shape and dtype of what is accumulated for each trainable variable.
        make_accumulator: makes what accumulates it, from the arguments of `GradientAccumulator`.
    """

    compressed: CompressedExchange | None
    accumulated: list[tf.TensorSpec]
    make_accumulator: Callable[..., GradientAccumulator]

    def packing(self, gradients: Sequence[Any], accumulates: bool) -> Packing:
        """The layout in which gradients are weighted and, if asked for, accumulated.

        Args:
            gradients: one per trainable variable: tensors, `tf.IndexedSlices`, or None.
            accumulates: whether gradients are accumulated.
        """

    def to_accumulate(self, packing: Packing, packed: list) -> tuple[Packing, list]:
        """What is accumulated of a micro-batch, and its layout; in replica context.

        Args:
            packing: the layout, from `packing`.
            packed: the packed gradients, weighted by the replica's share.
        """

    def sum(self, packing: Packing, packed: list, number: tf.Tensor) -> list[Any]:
        """The gradients for the update; None where there is none; in replica context.

        Args:
            packing: the layout, from `packing`, or with accumulation from `to_accumulate`.
            packed: the packed gradients, weighted by the replica's share.
            number: int64 scalar, the number of updates so far.
        """


def averaging_of(
    options: Options,
    specs: Sequence[tf.TensorSpec],
    paths: Sequence[str],
    fragments: Sequence[int],
    tables: Callable[[], Tables],
    in_parts: Mapping[int, Parts] = NOTHING,
    owners: Sequence[int] = (),
) -> Averaging:
    """What is averaged under `options`: the gradients at each update, or parts of them.

    Made in the strategy's scope.

    Args:
        options: the options of the optimizer.
        specs: the trainable variables' shapes and dtypes.
        paths: the trainable variables' paths.
        fragments: for each variable a number; only those of equal numbers are summed together.
        tables: tells, when a step is traced, what may travel in place of the rows of sparse
            gradients; see `row_tables.tables_of`.
        in_parts: how weights of which replicas keep parts are divided, by their positions. The
            backward pass gives parts of the sums of their gradients, of the shapes in `specs`.
        owners: for each variable the one replica that updates it; empty if all replicas do.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    sharding = options.sharded(replicas)
    if owners:
        return TotalsOfOwned(options, specs, owners)
    if sharding is not None:
        early = sharding != "optimizer" and options.accumulation_steps > 1
        kind = EarlyPartialTotals if early else PartialTotals
        return kind(options, specs, paths, replicas, in_parts)
    return Totals(options, specs, paths, fragments, tables)


def residuals_of(averaging: Averaging, places: Container[int]) -> list[tf.Variable]:
    """What error feedback keeps of some variables; one variable for those coded together.

    Args:
        averaging: what codes.
        places: the positions of all variables of some fragments.
    """
    compressed = averaging.compressed
    return [] if compressed is None else compressed.residuals(places)
