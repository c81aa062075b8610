"""Which variables' gradients are compressed together, and by which compressor."""

from __future__ import annotations

import bisect
import dataclasses
import warnings
from collections.abc import Container, Hashable, Sequence

import tensorflow as tf

from tfdist.compression.base import Compressor, nbytes
from tfdist.compression.choice import Choice
from tfdist.compression.none import Uncompressed
from tfdist.compression.traffic import gather_pays_until, sent_bytes
from tfdist.engines.current import current
from tfdist.step.exchange import Bucket, enough, plan_buckets

# What the payloads of tables take at most, of which a step may have read a few rows only.
TABLE_BYTES = 16 * 1024


@dataclasses.dataclass(frozen=True)
class Unit:
    """Variables whose gradients are compressed together.

    Attributes:
        compressor: the compressor of all of them.
        bucket: the variables.
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
        """The bytes of the unit's payload."""
        return self.compressor.wire_bytes(self.spec)

    def only(self, variables: Container[int]) -> Unit:
        """The unit with only those of its variables that are in `variables`."""
        members = [
            (index, shape)
            for index, shape in zip(self.bucket.indices, self.bucket.shapes)
            if index in variables
        ]
        indices, shapes = zip(*members) if members else ((), ())
        bucket = dataclasses.replace(self.bucket, indices=indices, shapes=shapes)
        return dataclasses.replace(self, bucket=bucket)

    def divided(self, gradient: tf.Tensor) -> dict[int, tf.Tensor]:
        """The compressor's result as gradients of the variables, by the variable's index."""
        parts = tf.split(tf.reshape(gradient, [-1]), self.bucket.sizes)
        return {
            index: tf.cast(tf.reshape(part, shape), self.bucket.dtype)
            for index, shape, part in zip(self.bucket.indices, self.bucket.shapes, parts)
        }


def small_tables(units: Sequence[Unit], sparse: Container[int]) -> dict[int, tf.TensorSpec]:
    """Shapes and dtypes of the variables with sparse gradients that are compressed as tables.

    These are the first ones whose payloads together are so few bytes that it does not matter how
    many rows there are. The update by all of a table must be that by its rows.

    Args:
        units: of all variables.
        sparse: the places of those with sparse gradients.
    """
    found: dict[int, tf.TensorSpec] = {}
    left = TABLE_BYTES
    for unit in (unit.only(sparse) for unit in units):
        is_small = bool(unit.bucket.indices) and unit.wire_bytes <= left
        if is_small and unit.compressor.codes_tables:
            left -= unit.wire_bytes
            found.update(zip(unit.bucket.indices, unit.bucket.specs))
    return found


def starts_of_stages(units: Sequence[Unit]) -> list[int]:
    """The updates at which some compressor changes: ascending, beginning with 0."""
    return sorted({0, *(first for unit in units for first, _ in unit.compressor.stages())})


def compressor_at(compressor: Compressor, number: int) -> Compressor:
    """The compressor that `compressor` uses at update `number`."""
    stages = compressor.stages()
    place = bisect.bisect_right([first for first, _ in stages], number) - 1
    return stages[place][1] if place >= 0 else Uncompressed()


def plan_units(
    choice: Choice,
    specs: Sequence[tf.TensorSpec],
    paths: Sequence[str],
    bucket_bytes: int,
    places: Sequence[Hashable] | None = None,
) -> list[Unit]:
    """Assigns variables to units; variables that travel uncompressed are in no unit.

    Args:
        choice: which compressor for which variable.
        specs: the variables' shapes and dtypes.
        paths: the variables' paths.
        bucket_bytes: upper bound of a unit of several variables, in bytes.
        places: for each variable, where its gradient is sent; all variables of a unit have the same
            place. None for one place.

    Raises:
        ValueError: for a pattern that another pattern hides; for variables without momentum.
    """
    chosen = choice.for_paths(paths)
    _check_momentum(chosen, paths)
    compressors = [c and c.for_variable(spec) for c, spec in zip(chosen, specs)]
    kinds = list(zip(compressors, places or [None] * len(compressors)))
    units = []
    for kind in dict.fromkeys(kinds):
        compressor, _ = kind
        if compressor is None:
            continue
        mine = [index for index, other in enumerate(kinds) if other == kind]
        own = [specs[index] for index in mine]
        for bucket in plan_buckets(own, _largest(compressor, own, bucket_bytes)):
            indices = tuple(mine[index] for index in bucket.indices)
            units.append(Unit(compressor, dataclasses.replace(bucket, indices=indices)))
    wanted = {c for c in chosen if c is not None and not isinstance(c, Uncompressed)}
    if wanted and not units:
        largest = max(nbytes(spec) for spec in specs)
        warnings.warn(
            "`compression` compresses none of these variables: the largest has "
            f"{largest} bytes. Smaller ones than `min_bytes` travel uncompressed, and such as a "
            f"compressor would not make smaller. Received: {[*map(str, wanted)]}",
            stacklevel=2,
        )
    return units


def _largest(compressor: Compressor, specs: Sequence[tf.TensorSpec], bucket_bytes: int) -> int:
    """How many bytes of these variables a unit of several has at most.

    Where each element is rounded by itself, units change no result. So there are many of them, and
    those whose payloads are summed can travel early in the backward pass.
    """
    if compressor.per_tensor:
        return 1
    if compressor.rounds_elements:
        return enough(sum(map(nbytes, specs)), bucket_bytes)
    return bucket_bytes


def _check_momentum(chosen: Sequence[Compressor | None], paths: Sequence[str]) -> None:
    """Raises ValueError if only some variables have momentum from their compressor."""
    without = [p for c, p in zip(chosen, paths) if c is None or not c.keeps_momentum]
    if without and len(without) < len(paths):
        raise ValueError(
            "A compressor that keeps the momentum itself must have all variables, as the optimizer "
            "has none for the others. Give these a DGC of their own, DGC(1.0) to send everything; "
            f"or choose DGC(momentum=0.0). Received: no momentum for {without}"
        )


def warn_of_traffic(units: Sequence[Unit]) -> None:
    """Warns if gathering payloads makes more traffic than sending uncompressed gradients."""
    hosts = current().hosts
    replicas = (hosts.between if hosts else current()).replicas
    who = "hosts" if hosts else "replicas"
    for compressor in dict.fromkeys(unit.compressor for unit in units):
        specs = [unit.spec for unit in units if unit.compressor == compressor]
        uncompressed = sum(nbytes(spec) for spec in specs)
        for _, stage in compressor.stages():
            payload = sum(stage.wire_bytes(spec) for spec in specs)
            sent = sent_bytes(payload, stage.aggregation, replicas)
            if stage.aggregation == "gather" and sent > sent_bytes(uncompressed, "sum", replicas):
                warnings.warn(
                    f"{stage} makes more traffic among {replicas} {who} than no compression, as "
                    "the payload of each of them travels to all others: that pays up to "
                    f"{gather_pays_until(payload / uncompressed)} {who}. Choose a smaller "
                    "ratio, or a compressor whose payloads are summed: 'powersgd', 'randomk', "
                    "'fp16'.",
                    stacklevel=2,
                )
                break
