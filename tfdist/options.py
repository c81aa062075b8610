"""The options that all strategies share, as data, checked when they are given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tfdist.compression.base import Compressor
from tfdist.compression.choice import Choice
from tfdist.limits import INT64_MAX
from tfdist.validation import check_integer

DEFAULT_BUCKET_BYTES = 4 * 1024 * 1024

# Twice as many, for which Horovod makes room, are an int64.
_MOST_BYTES = 2**62

Compression = str | Compressor | Mapping[str, Any] | None


@dataclasses.dataclass(frozen=True)
class Options:
    """What every tfdist strategy takes besides TensorFlow's own arguments.

    Attributes:
        accumulation_steps: number of micro-batches per exchange and update, 1 to 2**31 - 1.
        bucket_bytes: upper bound of a gradient bucket in bytes, 1 to 2**62.
        compression: a `tfdist.compression.Compressor`, its name, or a dict of patterns of
            variables' paths and these; None for none. Once made, a `Choice`.
        seed: for the random numbers of compressors, 0 to 2**63 - 1.

    Raises:
        ValueError: when a value is out of range or no integer, and for unknown compressors.
    """

    accumulation_steps: int = 1
    bucket_bytes: int = DEFAULT_BUCKET_BYTES
    compression: Any = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_integer("accumulation_steps", self.accumulation_steps, 1)
        check_integer("bucket_bytes", self.bucket_bytes, 1, _MOST_BYTES)
        check_integer("seed", self.seed, 0, INT64_MAX)
        object.__setattr__(self, "compression", Choice.of(self.compression))

    @classmethod
    def of(cls, strategy: tf.distribute.Strategy) -> Options:
        """The options of `strategy`; the defaults if it is no tfdist strategy."""
        options = getattr(strategy, "options", None)
        return options if isinstance(options, cls) else cls()

    def replace(self, **changes: Any) -> Options:
        """A copy with those of `changes` that are not None."""
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(self, **given)
