"""What travels in a step: the buckets and payloads of the live exchange; needs TensorFlow."""

from __future__ import annotations

import warnings

import tensorflow as tf

from tfdist.compression.base import Compressor, nbytes
from tfdist.compression.choice import Choice
from tfdist.compression.powersgd import PowerSGD
from tfdist.options import DEFAULT_BUCKET_BYTES
from tfdist.plan.workload import Message, TracedVariable, Workload
from tfdist.step.compression_units import Unit, compressor_at, plan_units, small_tables
from tfdist.step.exchange import enough, plan_buckets
from tfdist.step.rounded_rows import coder_of, row_bytes, table_bytes, table_is_smaller
from tfdist.step.tables import Tables

# An update at which warm-ups are over.
_LATE = 2**31 - 1


def messages_of(
    workload: Workload,
    compression: Choice | None,
    ranks: int,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
) -> list[Message]:
    """The messages of an exchange between `ranks` ranks, in the order in which they can leave.

    Args:
        workload: the traced model.
        compression: the option of the strategy.
        ranks: how many replicas exchange. Sparse gradients depend on it.
        bucket_bytes: the option of the strategy.

    Raises:
        ValueError: when the compressors do not go with these variables.
    """
    every = list(workload.variables)
    specs = [tf.TensorSpec(variable.shape, variable.dtype) for variable in every]
    units: list[Unit] = []
    if compression is not None:
        with warnings.catch_warnings():  # what is not compressed shows in the table
            warnings.simplefilter("ignore")
            units = plan_units(compression, specs, [v.path for v in every], bucket_bytes)
    compressors = {i: unit.compressor for unit in units for i in unit.bucket.indices}
    sparse = {index for index, variable in enumerate(every) if variable.rows is not None}
    if workload.tables is Tables.SUMS:
        sparse -= small_tables(units, sparse).keys()
    dense = set(range(len(every))) - sparse
    units = [part for unit in units if (part := unit.only(dense)).bucket.indices]
    coded = {index for unit in units for index in unit.bucket.indices}
    left = [index for index in sorted(dense) if index not in coded]
    found = [_coded(unit, every) for unit in units]
    if left:
        total = sum(nbytes(specs[index]) for index in left)
        for bucket in plan_buckets([specs[i] for i in left], enough(total, bucket_bytes)):
            ready = max(every[left[index]].ready for index in bucket.indices)
            tensors = len(bucket.indices)
            found.append(Message(bucket.bytes, bucket.bytes, ready, tensors=tensors))
    found += [
        _of_rows(variable, compressors.get(index), workload, ranks)
        for index, variable in enumerate(every)
        if index in sparse
    ]
    return sorted(found, key=lambda message: message.ready)


def _coded(unit: Unit, every: list[TracedVariable]) -> Message:
    compressor = compressor_at(unit.compressor, _LATE)
    ready = max(every[index].ready for index in unit.bucket.indices)
    exchanges = 2 if isinstance(compressor, PowerSGD) else 1
    payload = compressor.wire_bytes(unit.spec)
    return Message(
        payload,
        unit.bucket.bytes,
        ready,
        compressor.aggregation,
        exchanges,
        compressor.name,
        compressor.error_feedback,
        tensors=len(unit.bucket.indices),
    )


def _of_rows(
    variable: TracedVariable, compressor: Compressor | None, workload: Workload, ranks: int
) -> Message:
    """The message of a sparse gradient: its rows, or the table if that is fewer bytes."""
    assert variable.rows is not None
    spec = tf.TensorSpec(variable.shape, variable.dtype)
    coder = coder_of(compressor)
    tables = workload.tables
    # Else rows that are the same on all ranks are summed place by place.
    may_be_table = tables is Tables.SUMS or not variable.rows_are_fixed
    if tables is not Tables.NONE and may_be_table:
        if table_is_smaller(spec, variable.rows * ranks, tables, coder):
            size = table_bytes(spec, tables)
            return Message(size, size, variable.ready)
    coded, whole = (variable.rows * row_bytes(spec, used) for used in (coder, None))
    name = None if coder is None else coder.name
    return Message(coded, whole, variable.ready, "gather", compressor=name, is_rows=True)
