"""Stage 3: sum the gradients over the replicas, packed into buckets.

There is one collective operation per bucket, not one per variable. So the cost of a step does not
grow with the number of variables. The bucket size follows Li et al., "PyTorch Distributed:
Experiences on Accelerating Data Parallel Training" (VLDB 2020), section 3.2.3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.engines.current import current
from tfdist.step.fixed_rows import may_be_fixed
from tfdist.step.rounded_rows import RowCoder
from tfdist.step.rows import joined_rows, sums_of_fixed_rows, sums_of_rows
from tfdist.step.spans import timed
from tfdist.step.tables import Tables
from tfdist.step.unique_rows import added_up, are_unique
from tfdist.structures import Structure

# An operation with fewer bytes than this takes as long as one with this many.
SMALL_BYTES = 256 * 1024

# An operation carries at most this part of what a step exchanges, or SMALL_BYTES if that is more.
# With fewer and larger operations, less would travel before the backward pass ends.
PART = 1 / 12


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Tensors of one dtype that travel as one flat tensor.

    Attributes:
        indices: positions of the tensors in the list given to `plan_buckets`.
        shapes: shapes of the tensors.
        dtype: dtype of the tensors.
    """

    indices: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: tf.DType

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The tensors' shapes and dtypes."""
        return [tf.TensorSpec(shape, self.dtype) for shape in self.shapes]

    @property
    def sizes(self) -> list[int]:
        """The tensors' numbers of elements."""
        return [math.prod(shape) for shape in self.shapes]

    @property
    def bytes(self) -> int:
        """The bytes of all tensors together."""
        return sum(self.sizes) * self.dtype.size


def plan_buckets(specs: Sequence[tf.TensorSpec], bucket_bytes: int) -> list[Bucket]:
    """Assigns tensors to buckets, in the given order; each bucket has one dtype.

    Args:
        specs: shape and dtype of each tensor; the shapes must be static.
        bucket_bytes: upper bound of a bucket's size in bytes. A larger tensor has a bucket of its
            own.

    Returns:
        The buckets; every index of `specs` is in exactly one.
    """
    buckets = []
    for dtype in dict.fromkeys(spec.dtype for spec in specs):
        members: list[int] = []
        used = 0
        for index, spec in enumerate(specs):
            if spec.dtype != dtype:
                continue
            size = spec.shape.num_elements() * dtype.size
            if members and used + size > bucket_bytes:
                buckets.append(_bucket(specs, members))
                members, used = [], 0
            members.append(index)
            used += size
        buckets.append(_bucket(specs, members))
    return buckets


def _bucket(specs: Sequence[tf.TensorSpec], members: list[int]) -> Bucket:
    shapes = tuple(tuple(specs[index].shape.as_list()) for index in members)
    return Bucket(tuple(members), shapes, specs[members[0]].dtype)


def enough(total_bytes: int, bucket_bytes: int) -> int:
    """How many bytes one operation of a step carries at most.

    Args:
        total_bytes: how many bytes the step exchanges.
        bucket_bytes: upper bound of a bucket in bytes.
    """
    return min(bucket_bytes, max(math.ceil(PART * total_bytes), SMALL_BYTES))


def pack(bucket: Bucket, tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """The bucket's members of `tensors` as one tensor of shape `[sum(bucket.sizes)]`."""
    members = zip(bucket.indices, bucket.shapes)
    flat = [_reshape(tensors[index], shape, [-1]) for index, shape in members]
    return flat[0] if len(flat) == 1 else tf.concat(flat, axis=0)


def unpack(bucket: Bucket, flat: tf.Tensor) -> list[tf.Tensor]:
    """Inverse of `pack`: the members in the order of `bucket.indices`."""
    parts = [flat] if len(bucket.indices) == 1 else tf.split(flat, bucket.sizes)
    return [_reshape(part, shape, shape) for part, shape in zip(parts, bucket.shapes)]


def _reshape(tensor: tf.Tensor, member_shape: tuple[int, ...], shape: Sequence[int]) -> tf.Tensor:
    """`tensor` in `shape`; no operation if the bucket's member is a vector already.

    The static shape is known then: ranks choose by it how a bucket travels.
    """
    if len(member_shape) != 1:
        return tf.reshape(tensor, shape)
    is_known = tensor.shape.is_fully_defined()
    return tensor if is_known else tf.ensure_shape(tensor, member_shape)


class Packing:
    """The layout of one list of gradients: dense ones joined in buckets, sparse ones as they are.

    Args:
        gradients: tensors, `tf.IndexedSlices`, or None.
        specs: shape and dtype of the variables. The static shape of a gradient may be unknown.
        bucket_bytes: upper bound of a bucket in bytes; 0 to join no tensors.
    """

    def __init__(self, gradients: Sequence[Any], specs: Sequence[tf.TensorSpec], bucket_bytes: int):
        dense, self._sparse = _dense_and_sparse(gradients)
        self._sparse_specs = [specs[index] for index in self._sparse]
        self._buckets = [
            dataclasses.replace(bucket, indices=tuple(dense[i] for i in bucket.indices))
            for bucket in plan_buckets([specs[i] for i in dense], bucket_bytes)
        ]
        self._length = len(gradients)

    def pack(self, gradients: Sequence[Any]) -> list[Any]:
        """One flat tensor per bucket, then the sparse gradients."""
        packed = [pack(bucket, gradients) for bucket in self._buckets]
        return packed + [gradients[index] for index in self._sparse]

    def sum(
        self,
        packed: Sequence[Any],
        tables: Tables = Tables.NONE,
        coders: Mapping[int, RowCoder] | None = None,
    ) -> list[Any]:
        """The sums over the replicas of the tensors from `pack`; called in replica context.

        Each sum is an operation of its own, which starts as soon as its gradients are there. The
        last gradients come first, as a backward pass begins with the last layers.

        Args:
            packed: the tensors from `pack`, of the same shapes on every replica.
            tables: what may travel in place of the rows of sparse gradients; see
                `row_tables.tables_of`.
            coders: what rounds the rows of sparse gradients, by the gradient's place in the list;
                None where all travel as they are.
        """
        dense, sparse = packed[: len(self._buckets)], packed[len(self._buckets) :]
        of_rows = [(coders or {}).get(place) for place in self._sparse]
        rows = timed_rows(sparse, self._sparse_specs, tables, of_rows)
        totals = [_timed_sum(place, dense[place]) for place in reversed(range(len(dense)))]
        return totals[::-1] + rows

    def unpack(self, packed: Sequence[Any]) -> list[Any]:
        """Inverse of `pack`; None where there was no gradient."""
        gradients: list[Any] = [None] * self._length
        for bucket, flat in zip(self._buckets, packed):
            for index, part in zip(bucket.indices, unpack(bucket, flat)):
                gradients[index] = part
        for index, gradient in zip(self._sparse, packed[len(self._buckets) :]):
            gradients[index] = gradient
        return gradients


def _timed_sum(place: int, bucket: tf.Tensor) -> tf.Tensor:
    return timed(f"exchange {place}", bucket, lambda: all_reduce([bucket])[0])


def timed_rows(
    rows: Sequence[Any],
    specs: Sequence[tf.TensorSpec] = (),
    tables: Tables = Tables.NONE,
    coders: Sequence[RowCoder | None] = (),
) -> list[Any]:
    """The sums over the replicas of sparse gradients; in replica context.

    Args:
        rows: `tf.IndexedSlices`.
        specs: shapes and dtypes of the variables, if tables may travel.
        tables: what may travel in place of rows.
        coders: what rounds each of them; none where all travel as they are.
    """
    if not rows:
        return []
    coders = coders or [None] * len(rows)

    def run() -> list[Any]:
        found = list(rows)
        # Where sums of rows will do, it does not matter how often a row occurs.
        counts = tables is not Tables.SUMS
        fixed = [place for place, row in enumerate(rows) if counts and may_be_fixed(row)]
        left = [place for place in range(len(rows)) if place not in fixed]
        unique = [place for place in left if counts and are_unique(rows[place])]
        others = [place for place in left if place not in unique]
        of_unique = tables if tables is Tables.NONE else Tables.SUMS
        sums = sums_of_fixed_rows([rows[place] for place in fixed], all_reduce)
        sums += map(added_up, of_samples(unique, of_unique))
        sums += of_samples(others, tables)
        for place, total in zip([*fixed, *unique, *others], sums):
            found[place] = total
        return found

    def of_samples(places: list[int], tables: Tables) -> list[Any]:
        given = [rows[place] for place in places]
        of_given = [coders[place] for place in places]
        if tables is Tables.NONE:
            return joined_rows(given, of_given, all_reduce)
        of_variables = [specs[place] for place in places]
        return sums_of_rows(given, of_variables, tables, of_given, all_reduce)

    return timed("exchange of rows", rows, run)


def _dense_and_sparse(gradients: Sequence[Any]) -> tuple[list[int], list[int]]:
    given = [index for index, gradient in enumerate(gradients) if gradient is not None]
    sparse = [index for index in given if isinstance(gradients[index], tf.IndexedSlices)]
    return [index for index in given if index not in sparse], sparse


def all_reduce(values: list) -> list:
    """The sum over all replicas of each of `values`; called in replica context.

    Args:
        values: tensors of the same shapes on every replica, and `tf.IndexedSlices`. The latter are
            concatenated, not made dense.
    """
    engine = current()
    if not values or engine.replicas == 1:
        return values
    cuts = [_cut(value, engine.largest_message) for value in values]
    sums = iter((engine.hosts or engine).all_reduce([piece for cut in cuts for piece in cut]))
    return [_joined([next(sums) for _ in cut]) for cut in cuts]


def _cut(value: Structure, largest: int | None) -> list:
    """`value` in pieces of at most `largest` bytes."""
    if largest is None or isinstance(value, tf.IndexedSlices) or value.shape.rank != 1:
        return [value]
    length, most = value.shape[0], max(1, largest // value.dtype.size)
    if length is None or length <= most:
        return [value]
    return tf.split(value, [most] * (length // most) + [length % most] * (length % most > 0))


def _joined(pieces: list) -> Any:
    return pieces[0] if len(pieces) == 1 else tf.concat(pieces, axis=0)
