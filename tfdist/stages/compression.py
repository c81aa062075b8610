"""Compresses the gradients, exchanges what is left of them, and restores their sum.

Error feedback (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, algorithm 2) is the same for all compressors: what a replica could not send is
added to its next gradient.
"""

from __future__ import annotations

import bisect
import functools
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.compression.base import Compressor, Step
from tfdist.compression.choice import Choice
from tfdist.compression.none import Uncompressed
from tfdist.stages import wire
from tfdist.stages.compression_state import CompressionState
from tfdist.stages.compression_step import UnitStep
from tfdist.stages.compression_units import Unit, plan_units, warn_of_traffic


class CompressedExchange:
    """Sums the gradients of some variables over the replicas, compressed.

    Made in the strategy's scope.

    Args:
        choice: which compressor for which variable.
        specs: the trainable variables' shapes and dtypes.
        paths: the trainable variables' paths.
        bucket_bytes: upper bound of a bucket in bytes.
        seed: for random numbers.

    Attributes:
        units: which variables are compressed together, and by what.
        in_use: the units as of the last trace: without variables whose gradients are sparse.
        state: what is kept from step to step.
        monitor: what measures each step; None for nothing.
    """

    def __init__(
        self,
        choice: Choice,
        specs: Sequence[tf.TensorSpec],
        paths: Sequence[str],
        bucket_bytes: int,
        seed: int,
    ):
        self.units = plan_units(choice, specs, paths, bucket_bytes)
        self.in_use: list[Unit] = self.units
        self.state = CompressionState([(unit.compressor, unit.bucket) for unit in self.units])
        self.monitor: Any = None
        warn_of_traffic(self.units)
        self._bucket_bytes = bucket_bytes
        self._seeds = [
            zlib.crc32(f"{seed} {unit.bucket.indices}".encode()) & 0x7FFFFFFF for unit in self.units
        ]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, gradients: Sequence[Any], number: tf.Tensor) -> dict[int, tf.Tensor]:
        """The sums of the gradients that are compressed; in replica context.

        Args:
            gradients: one per trainable variable: tensors, `tf.IndexedSlices`, or None.
            number: int64 scalar, the number of updates so far.

        Returns:
            Float tensors by the variable's index.
        """
        dense = {
            index: tf.convert_to_tensor(gradients[index])
            for unit in self.units
            for index in unit.bucket.indices
            if _is_compressed(gradients[index], unit.compressor)
        }
        self.in_use = [part for unit in self.units if (part := unit.only(dense)).bucket.indices]
        firsts = sorted({first for unit in self.units for first, _ in unit.compressor.stages()})
        if not dense:
            return {}
        if firsts == [0]:
            return self._exchange(0, dense, number)
        by_stage = functools.partial(self._by_stage, sorted({0, *firsts}))
        return tf.distribute.get_replica_context().merge_call(by_stage, args=(dense, number))

    def _by_stage(self, starts: list[int], strategy: Any, dense: Any, number: Any) -> Any:
        """Chooses by the number of updates; in cross-replica context, where that is allowed."""
        now = strategy.experimental_local_results(number)[0]
        stage = tf.reduce_sum([tf.cast(now >= start, tf.int32) for start in starts]) - 1

        def run(first: int) -> Any:
            step = functools.partial(self._exchange, first)
            return strategy.extended.call_for_each_replica(step, args=(dense, number))

        return tf.switch_case(stage, [functools.partial(run, first) for first in starts])

    def _exchange(
        self, first: int, dense: dict[int, tf.Tensor], number: tf.Tensor
    ) -> dict[int, tf.Tensor]:
        """One step of the stage that begins with update `first`."""
        context = tf.distribute.get_replica_context()
        running = []
        for index, unit in enumerate(self.units):
            if any(member in dense for member in unit.bucket.indices):
                step = self._step(index, number, context.replica_id_in_sync_group)
                compressor = _at(unit.compressor, first)
                running.append(UnitStep(unit, compressor, self.state.parts[index], dense, step))
        largest = getattr(context.strategy, "largest_message", None)
        while waiting := [unit_step for unit_step in running if unit_step.payload is not None]:
            sums = [w for w in waiting if w.compressor.aggregation == "sum"]
            gathers = [w for w in waiting if w.compressor.aggregation == "gather"]
            totals = wire.sum_over_replicas(_flat(sums), self._bucket_bytes, largest)
            rows = wire.gather_from_replicas(_flat(gathers), largest)
            received = iter([*totals, *rows])
            for unit_step in [*sums, *gathers]:
                unit_step.receive(tuple(next(received) for _ in unit_step.payload or ()))
        found: dict[int, tf.Tensor] = {}
        for unit_step in running:
            found.update(unit_step.finish())
        if self.monitor is not None:
            self.monitor.record([unit_step.measured() for unit_step in running])
        return found

    def _step(self, unit: int, number: tf.Tensor, replica_id: tf.Tensor) -> Step:
        fold_in = tf.random.experimental.stateless_fold_in
        base = tf.constant([self._seeds[unit], 0], tf.int32)
        seed = fold_in(base, tf.cast(number, tf.int32))
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        return Step(seed, fold_in(seed, replica_id), replicas)


def _is_compressed(gradient: Any, compressor: Compressor) -> bool:
    """Sparse gradients travel as they are, unless they have a momentum, which is dense."""
    if isinstance(gradient, tf.IndexedSlices):
        return compressor.keeps_momentum
    return gradient is not None


def _at(compressor: Compressor, number: int) -> Compressor:
    """What `compressor` is at update `number`."""
    stages = compressor.stages()
    place = bisect.bisect_right([first for first, _ in stages], number) - 1
    return stages[place][1] if place >= 0 else Uncompressed()


def _flat(steps: list[UnitStep]) -> list[tf.Tensor]:
    return [tensor for step in steps for tensor in step.payload or ()]
