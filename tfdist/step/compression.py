"""Compresses the gradients, exchanges what is left of them, and restores their sum.

Error feedback (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
Schemes", ICML 2019, algorithm 2) is the same for all compressors: what a replica could not send is
added to its next gradient.

Where replicas are grouped by host, their gradients are summed inside the host first, and a host
takes the place of a replica: each of its replicas computes the same, from the same sum.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compression.base import nbytes
from tfdist.compression.choice import Choice
from tfdist.engines.current import between, current, own_number
from tfdist.engines.hosts import Hosts
from tfdist.step import wire
from tfdist.step.compression_state import CompressionState, residual
from tfdist.step.compression_step import UnitStep, is_compressed, seeds
from tfdist.step.compression_units import (
    Unit,
    compressor_at,
    plan_units,
    small_tables,
    starts_of_stages,
    warn_of_traffic,
)
from tfdist.step.exchange import SMALL_BYTES
from tfdist.step.rounded_rows import RowCoder, coder_of
from tfdist.step.spans import mark
from tfdist.structures import Structure


class CompressedExchange:
    """Sums the gradients of some variables over the replicas, compressed.

    Made in the strategy's scope.

    Args:
        choice: which compressor for which variable.
        specs: the trainable variables' shapes and dtypes.
        paths: the trainable variables' paths.
        bucket_bytes: upper bound of a bucket in bytes.
        seed: for random numbers.
        fragments: for each variable a number; only those of equal numbers are given together. None
            for one number.

    Attributes:
        units: which variables are compressed together, and by what.
        in_use: the units at the last trace, without the variables whose gradients are sparse.
        state: what is kept from step to step.
        monitor: measures each step; None for no measuring.
    """

    def __init__(
        self,
        choice: Choice,
        specs: Sequence[tf.TensorSpec],
        paths: Sequence[str],
        bucket_bytes: int,
        seed: int,
        fragments: Sequence[int] | None = None,
    ):
        self._fragments = list(fragments or [0] * len(specs))
        self.units = plan_units(choice, specs, paths, bucket_bytes, self._fragments)
        self.in_use: list[Unit] = self.units
        self.state = CompressionState([(unit.compressor, unit.bucket) for unit in self.units])
        self.monitor: Structure = None
        warn_of_traffic(self.units)
        self._bucket_bytes = bucket_bytes
        self._seed = seed

    @tf.autograph.experimental.do_not_convert
    def __call__(self, gradients: Sequence[Any], number: tf.Tensor) -> dict[int, tf.Tensor]:
        """The sums of the gradients that are compressed; in replica context.

        Others that are small travel beside what is sent of these first: each message takes the time
        of the link's way there and back.

        Args:
            gradients: one per trainable variable: tensors, `tf.IndexedSlices`, or None.
            number: int64 scalar, the number of updates so far.

        Returns:
            Float tensors by the variable's index, also of the small ones.
        """
        dense = {
            index: tf.convert_to_tensor(gradients[index])
            for unit in self.units
            for index in unit.bucket.indices
            if is_compressed(gradients[index], unit.compressor)
        }
        self._note_in_use(gradients, dense)
        if not dense:
            return {}
        beside = {} if current().hosts else _small(gradients, dense)
        starts = starts_of_stages(self.units)
        if starts == [0]:
            return self._exchange(0, dense, beside, number)
        by_stage = functools.partial(self._by_stage, starts)
        given = dense, beside, number
        return tf.distribute.get_replica_context().merge_call(by_stage, args=given)

    def with_small_tables(self, gradients: Sequence[Any]) -> list[Any]:
        """The gradients, with the sparse ones of `small_tables` as tables, which are compressed.

        Args:
            gradients: as for a call.
        """
        found = list(gradients)
        sparse = {i for i, value in enumerate(gradients) if isinstance(value, tf.IndexedSlices)}
        for index, spec in small_tables(self.units, sparse).items():
            rows = gradients[index]
            table = tf.math.unsorted_segment_sum(rows.values, rows.indices, spec.shape[0])
            found[index] = tf.ensure_shape(table, spec.shape)
        return found

    def row_coders(self, number: tf.Tensor) -> dict[int, RowCoder]:
        """What rounds the rows of sparse gradients, by the variable's index.

        Args:
            number: as for a call.
        """
        return {
            index: RowCoder(unit.compressor, number)
            for unit in self.units
            for index in unit.bucket.indices
            if coder_of(unit.compressor) is not None
        }

    def residuals(self, places: Container[int]) -> list[tf.Variable]:
        """What error feedback keeps of some variables; see `residuals_of`."""
        parts = zip(self.units, self.state.parts)
        ours = [part for unit, part in parts if unit.bucket.indices[0] in places]
        return [part[residual] for part in ours if residual in part]

    def _note_in_use(self, gradients: Sequence[Any], dense: Container[int]) -> None:
        """Notes the units of the fragments that are given; those of others stay as they were."""
        given = {f for f, gradient in zip(self._fragments, gradients) if gradient is not None}
        others = [u for u in self.in_use if self._fragments[u.bucket.indices[0]] not in given]
        now = [part for unit in self.units if (part := unit.only(dense)).bucket.indices]
        self.in_use = sorted([*others, *now], key=lambda unit: unit.bucket.indices)

    def _by_stage(
        self,
        starts: list[int],
        strategy: tf.distribute.Strategy,
        dense: Structure,
        beside: Structure,
        number: tf.Tensor,
    ) -> Structure:
        """Runs the stage of this update; in cross-replica context, where conditions are allowed."""
        now = strategy.experimental_local_results(number)[0]
        stage = tf.reduce_sum([tf.cast(now >= start, tf.int32) for start in starts]) - 1

        def run(first: int) -> Any:
            step = functools.partial(self._exchange, first)
            return strategy.extended.call_for_each_replica(step, args=(dense, beside, number))

        return tf.switch_case(stage, [functools.partial(run, first) for first in starts])

    def _exchange(
        self,
        first: int,
        dense: dict[int, tf.Tensor],
        beside: dict[int, tf.Tensor],
        number: tf.Tensor,
    ) -> dict[int, tf.Tensor]:
        """One step of the stage that begins with update `first`."""
        hosts = current().hosts
        with between(hosts):
            return self._exchange_between(hosts, first, dense, beside, number)

    def _exchange_between(
        self,
        hosts: Hosts | None,
        first: int,
        dense: dict[int, tf.Tensor],
        beside: dict[int, tf.Tensor],
        number: tf.Tensor,
    ) -> dict[int, tf.Tensor]:
        """The same, where the current engine is between `hosts`, if there are such groups."""
        sender, senders = own_number(), current().replicas
        running, variables = [], []
        mark("encode begins", dense)
        for index, unit in enumerate(self.units):
            if any(member in dense for member in unit.bucket.indices):
                variables.append(self.state.parts[index])
                state = {name: v.read_value() for name, v in variables[-1].items()}
                step = seeds(self._seed, unit, number, sender, senders)
                compressor = compressor_at(unit.compressor, first)
                running.append(UnitStep(unit, compressor, state, dense, step, hosts))
        mark("encode ends", _flat(running))
        found: dict[int, tf.Tensor] = {}
        rounds = itertools.count()
        while waiting := [unit_step for unit_step in running if unit_step.payload is not None]:
            sums = [w for w in waiting if w.compressor.aggregation == "sum"]
            gathers = [w for w in waiting if w.compressor.aggregation == "gather"]
            number_of_round = next(rounds)
            exchange = f"exchange of payloads {number_of_round}"
            payloads, others = _flat(sums), {} if number_of_round else beside
            with mark(f"{exchange} begins", _flat(waiting)):
                totals = wire.sum_over_replicas([*payloads, *others.values()], self._bucket_bytes)
                rows = wire.gather_from_replicas(_flat(gathers))
            mark(f"{exchange} ends", [*totals, *rows])
            found.update(zip(others, totals[len(payloads) :]))
            totals = totals[: len(payloads)]
            received = iter([*totals, *rows])
            mark("decode begins", [*totals, *rows])  # the last one counts
            for unit_step in [*sums, *gathers]:
                unit_step.receive(tuple(next(received) for _ in unit_step.payload or ()))
        for unit_step, own in zip(running, variables):
            found.update(unit_step.totals())
            for name, value in unit_step.kept().items():
                own[name].assign(value)
        mark("decode ends", found)
        if self.monitor is not None:
            self.monitor.record([unit_step.measured() for unit_step in running])
        return found


def _small(gradients: Sequence[Any], dense: Container[int]) -> dict[int, tf.Tensor]:
    """The gradients that are not compressed and take no time beside others; none if these are many.

    Args:
        gradients: as for `CompressedExchange`.
        dense: the places of those that are compressed.
    """
    found = {
        place: gradient
        for place, gradient in enumerate(gradients)
        if place not in dense
        and isinstance(gradient, tf.Tensor)
        and gradient.dtype == tf.float32
        and gradient.shape.is_fully_defined()
    }
    return found if sum(map(nbytes, found.values())) <= SMALL_BYTES else {}


def _flat(steps: list[UnitStep]) -> list[tf.Tensor]:
    return [tensor for step in steps for tensor in step.payload or ()]
