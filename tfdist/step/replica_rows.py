"""Rows: the values that one replica keeps of a variable; how a file holds and sums them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.step.exchange import Bucket

Place = tuple[str, Any, tuple[int, ...]]

# How a file or a copy holds the rows.
PER_REPLICA = "per replica"
SUM = "sum"
NOTHING = "nothing"


@dataclasses.dataclass(frozen=True)
class Entry:
    """A variable for which each replica has values of its own.

    Attributes:
        variable: the variable.
        places: the parts of the variable as a file holds them: key, index of the part, shape.
        shared: whether all replicas have the same values after all.
        holders: the replicas that have values; None for all.
    """

    variable: tf.Variable
    places: list[Place]
    shared: bool = False
    holders: Sequence[int] | None = None

    @property
    def empty(self) -> np.ndarray:
        """An array of the variable's shape and dtype, to be filled."""
        return np.empty(self.variable.shape, self.variable.dtype.as_numpy_dtype)


def places(bucket: Bucket, shape: tuple[int, ...], prefix: str = "") -> list[Place]:
    """Where the variables of `bucket` lie in a variable of the given shape, which may be flat."""
    if shape != (sum(bucket.sizes),):
        return [(f"{prefix}{bucket.indices[0]}", ..., shape)]
    ends = np.cumsum(bucket.sizes).tolist()
    slots = [slice(end - size, end) for end, size in zip(ends, bucket.sizes)]
    keys = [f"{prefix}{index}" for index in bucket.indices]
    return list(zip(keys, slots, bucket.shapes))


def total_of(rows: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of the replicas' rows; only one row is in memory at a time."""
    return functools.reduce(np.add, rows)


def no_row(entry: Entry) -> np.ndarray:
    """A placeholder for a row of another process; takes no memory."""
    zero = np.zeros((), entry.variable.dtype.as_numpy_dtype)
    return np.broadcast_to(zero, tuple(entry.variable.shape))
