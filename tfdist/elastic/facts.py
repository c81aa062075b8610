"""What ranks must have alike before they do something together."""

from __future__ import annotations

import zlib

import tensorflow as tf

from tfdist.balance import whole_batches
from tfdist.data import batch_checksums
from tfdist.data.batches import as_tensors
from tfdist.elastic.operations import Operation
from tfdist.elastic.state import Made
from tfdist.elastic.windows import Windows
from tfdist.structures import Structure

FACTS = ("operation", "variables", "batches", "sizes", "targets", "inputs")


def facts_of(operation: Operation, made: Made, windows: Windows, count: int) -> list[int]:
    """The facts about a rank, in the order of `FACTS`.

    Args:
        operation: what it is about to do.
        made: the variables of all models.
        windows: the accumulated gradients that wait for an update.
        count: how many of these are compared.
    """
    lengths = windows.lengths(count)
    return [
        zlib.crc32(f"{operation.kind} {operation.window}".encode()),
        made.count,
        zlib.crc32(lengths.tobytes()),
        *_checksums(operation.batch),
    ]


def _checksums(batch: Structure) -> list[int]:
    """Checksums of a batch: the number of samples, the targets and weights, and the inputs."""
    if whole_batches.are_in((batch,)):
        (batch,) = batch
    inputs, *targets = as_tensors(batch) if isinstance(batch, tuple) else (as_tensors(batch),)
    given = [target for target in targets if target is not None]
    sizes = [leaf.shape[0] for leaf in tf.nest.flatten(inputs) if getattr(leaf, "shape", ())]
    return [
        zlib.crc32(repr(sizes).encode()),
        int(batch_checksums.of_targets(given)),
        int(batch_checksums.of_inputs(inputs)),
    ]
