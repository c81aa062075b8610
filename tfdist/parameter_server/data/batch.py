"""A batch for a worker, or a part of a global batch."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from tfdist.structures import Structure


class BatchPart(NamedTuple):
    """Which part of a global batch a worker is given.

    Attributes:
        index: int32 scalar, the number of the part.
        fraction: float32 scalar, the part's share of the samples.
        nonempty: float32 scalar, 1.0; 0.0 if the part has no samples.
    """

    index: tf.Tensor
    fraction: tf.Tensor
    nonempty: tf.Tensor


@dataclasses.dataclass
class Batch:
    """A batch for a worker.

    Attributes:
        shard: the shard that the batch is from; 0 where the chief reads all batches.
        position: the batch's place in the shard.
        data: the tensors, on the chief or on the worker that took the batch; or an iterator, of
            which the batch is the next element.
        part: which part of a global batch it is; None for a whole one.
        index: for a part, which one it is.
        number: for a part, the number of earlier global batches in this run.
        checksum: the checksum of the data, where a run is recorded; else None.
    """

    shard: int
    position: int
    data: Structure
    part: BatchPart | None = None
    index: int = 0
    number: int = 0
    checksum: str | None = None
