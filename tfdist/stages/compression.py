"""Compresses the gradients, exchanges what is left of them, and restores their sum.

Error feedback (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, algorithm 2) is the same for all compressors: what a replica could not send is
added to its next gradient.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import warnings
import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.compression.base import Compressor, Result, Step, nbytes
from tfdist.compression.choice import Choice
from tfdist.compression.none import Uncompressed
from tfdist.compression.traffic import gather_pays_until, sent_bytes
from tfdist.stages import wire
from tfdist.stages.compression_state import CompressionState, residual
from tfdist.stages.exchange import Bucket, plan_buckets


@dataclasses.dataclass(frozen=True)
class Unit:
    """Variables whose gradients are compressed together.

    Attributes:
        compressor: by what.
        bucket: which variables.
    """

    compressor: Compressor
    bucket: Bucket

    @property
    def spec(self) -> tf.TensorSpec:
        """What the compressor sees: a vector, or one variable's gradient in its shape."""
        if self.compressor.per_tensor:
            return tf.TensorSpec(self.bucket.shapes[0], tf.float32)
        return tf.TensorSpec([sum(self.bucket.sizes)], tf.float32)

    @property
    def wire_bytes(self) -> int:
        """The bytes of its payload."""
        return self.compressor.wire_bytes(self.spec)


def plan_units(
    choice: Choice, specs: Sequence[tf.TensorSpec], paths: Sequence[str], bucket_bytes: int
) -> list[Unit]:
    """Assigns variables to units; those that travel uncompressed are in none.

    Args:
        choice: which compressor for which variable.
        specs: the variables' shapes and dtypes.
        paths: the variables' paths.
        bucket_bytes: upper bound of a unit of several variables, in bytes.

    Raises:
        ValueError: for a pattern that fits no variable.
    """
    compressors = choice.for_paths(paths)
    units = []
    for compressor in dict.fromkeys(c for c in compressors if c is not None):
        mine = [
            index
            for index, spec in enumerate(specs)
            if compressors[index] == compressor and compressor.accepts(spec)
        ]
        bound = 1 if compressor.per_tensor else bucket_bytes
        for bucket in plan_buckets([specs[index] for index in mine], bound) if mine else []:
            indices = tuple(mine[index] for index in bucket.indices)
            units.append(Unit(compressor, dataclasses.replace(bucket, indices=indices)))
    return units


class CompressedExchange:
    """Sums the gradients of some variables over the replicas, compressed.

    Made in the strategy's scope.

    Args:
        choice: which compressor for which variable.
        specs: the trainable variables' shapes and dtypes.
        paths: the trainable variables' paths.
        bucket_bytes: upper bound of a bucket in bytes.
        seed: for random numbers.
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
        self.state = CompressionState([(unit.compressor, unit.bucket) for unit in self.units])
        self.monitor: Any = None
        _warn_of_traffic(self.units)
        self._bucket_bytes = bucket_bytes
        self._seeds = [
            zlib.crc32(f"{seed} {unit.bucket.indices}".encode()) & 0x7FFFFFFF for unit in self.units
        ]

    @tf.autograph.experimental.do_not_convert
    def __call__(self, gradients: Sequence[Any], number: tf.Tensor) -> dict[int, tf.Tensor]:
        """The sums of the dense gradients among those that are compressed; in replica context.

        Args:
            gradients: one per trainable variable: tensors, `tf.IndexedSlices`, or None.
            number: int64 scalar, the number of updates so far.

        Returns:
            Float tensors by the variable's index.
        """
        dense = {
            index: gradients[index]
            for unit in self.units
            for index in unit.bucket.indices
            if tf.is_tensor(gradients[index]) and not _is_sparse(gradients[index])
        }
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
                running.append(_UnitStep(unit, compressor, self.state.parts[index], dense, step))
        largest = getattr(context.strategy, "largest_message", None)
        while waiting := [unit_step for unit_step in running if unit_step.payload is not None]:
            sums = [w for w in waiting if w.compressor.aggregation == "sum"]
            gathers = [w for w in waiting if w.compressor.aggregation == "gather"]
            totals = wire.sum_over_replicas(_flat(sums), self._bucket_bytes, largest)
            rows = wire.gather_from_replicas(_flat(gathers), largest)
            received = iter([*totals, *rows])
            for unit_step in [*sums, *gathers]:
                unit_step.receive(tuple(next(received) for _ in unit_step.payload))
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


def _at(compressor: Compressor, number: int) -> Compressor:
    """What `compressor` is at update `number`."""
    stages = compressor.stages()
    place = bisect.bisect_right([first for first, _ in stages], number) - 1
    return stages[place][1] if place >= 0 else Uncompressed()


def _warn_of_traffic(units: Sequence[Unit]) -> None:
    """Warns where gathering payloads is more traffic than uncompressed gradients."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    for compressor in dict.fromkeys(unit.compressor for unit in units):
        specs = [unit.spec for unit in units if unit.compressor == compressor]
        uncompressed = sum(nbytes(spec) for spec in specs)
        for _, stage in compressor.stages():
            payload = sum(stage.wire_bytes(spec) for spec in specs)
            sent = sent_bytes(payload, stage.aggregation, replicas)
            if stage.aggregation == "gather" and sent > sent_bytes(uncompressed, "sum", replicas):
                warnings.warn(
                    f"{stage} makes more traffic among {replicas} replicas than no compression, as "
                    "every replica's payload travels to all others: that pays up to "
                    f"{gather_pays_until(payload / uncompressed)} replicas. Choose a smaller "
                    "ratio, or a compressor whose payloads are summed: 'powersgd', 'randomk', "
                    "'fp16'.",
                    stacklevel=2,
                )
                break


def _flat(steps: list[_UnitStep]) -> list[tf.Tensor]:
    return [tensor for step in steps for tensor in step.payload or ()]


def _is_sparse(gradient: Any) -> bool:
    return isinstance(gradient, tf.IndexedSlices)


class _UnitStep:
    """One unit's way through one step, on one replica."""

    def __init__(
        self,
        unit: Unit,
        compressor: Compressor,
        variables: dict[str, tf.Variable],
        dense: dict[int, tf.Tensor],
        step: Step,
    ):
        self.unit = unit
        self.compressor = compressor
        self._variables = variables
        self._members = [index for index in unit.bucket.indices if index in dense]
        self.gradient = self._joined(dense)
        self.corrected = self.gradient
        self._kept = variables[residual].read_value() if residual in variables else None
        # What was unsent of a variable without a gradient waits; there is seldom one.
        self._present: tf.Tensor | None = None
        if len(self._members) < len(unit.bucket.indices):
            self._present = self._joined({i: tf.ones_like(dense[i]) for i in self._members}) > 0
        if self._kept is not None:
            self.corrected += self._where_present(self._kept, tf.zeros_like(self._kept))
        self._state = {n: v.read_value() for n, v in variables.items() if n != residual}
        self._exchange = compressor.exchange(self.corrected, self._state, step)
        self.payload: Any = next(self._exchange)
        self.result: Result | None = None

    def _joined(self, dense: dict[int, tf.Tensor]) -> tf.Tensor:
        """The gradients as the compressor sees them, zeros where there is none."""
        bucket = self.unit.bucket
        flat = [
            tf.cast(tf.reshape(dense[index], [-1]), tf.float32)
            if index in dense
            else tf.zeros([size])
            for index, size in zip(bucket.indices, bucket.sizes)
        ]
        return tf.reshape(tf.concat(flat, axis=0), self.unit.spec.shape)

    def _where_present(self, value: tf.Tensor, otherwise: tf.Tensor) -> tf.Tensor:
        return value if self._present is None else tf.where(self._present, value, otherwise)

    def receive(self, received: tuple[tf.Tensor, ...]) -> None:
        """Takes what has arrived, and has the next payload, if there is one."""
        try:
            self.payload = self._exchange.send(received)
        except StopIteration as end:
            self.payload, self.result = None, end.value

    def measured(self) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """The gradient, what was sent of it and of earlier ones, and what was not sent."""
        assert self.result is not None
        kept = self.corrected - self.result.own if self.result.kept is None else self.result.kept
        return self.gradient, self.result.own, kept

    def finish(self) -> dict[int, tf.Tensor]:
        """Keeps the state; gives the sums by variable."""
        assert self.result is not None
        for name, value in self.result.state.items():
            if value is not self._state[name]:
                self._variables[name].assign(value)
        if self._kept is not None:
            unsent = self._where_present(self.corrected - self.result.own, self._kept)
            self._variables[residual].assign(unsent)
        bucket = self.unit.bucket
        parts = tf.split(tf.reshape(self.result.total, [-1]), bucket.sizes)
        return {
            index: tf.cast(tf.reshape(part, shape), bucket.dtype)
            for index, shape, part in zip(bucket.indices, bucket.shapes, parts)
            if index in self._members
        }
