"""No compression: everything travels, or nothing at all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from tfdist.compression.base import (
    Compressor,
    Exchange,
    Payload,
    Result,
    State,
    Step,
    as_gradient,
    nbytes,
)
from tfdist.compression.registry import register


@register
@dataclasses.dataclass(frozen=True)
class Uncompressed(Compressor):
    """Everything travels as it is: for some of the layers, or for a comparison.

    Example:

    >>> import tfdist
    >>> compression = {"embedding/*": tfdist.compression.Uncompressed(), "*": "int8"}
    >>> strategy = tfdist.MirroredStrategy(compression=compression)
    """

    name: ClassVar[str] = "none"
    aggregation: ClassVar = "sum"

    @property
    def unbiased(self) -> bool:
        """It is exact."""
        return True

    def contraction(self, spec: tf.TensorSpec) -> float:
        """It is exact."""
        return 1.0

    def accepts(self, spec: tf.TensorSpec) -> bool:
        """No variable is compressed: without compression the exchange is as exact as the dtype."""
        return False

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """The gradient."""
        return (gradient,), state

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The gradient."""
        return as_gradient(payload[0], spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """Four bytes per element: gradients are compressed in float32."""
        return nbytes(spec) // spec.dtype.size * tf.float32.size


@register
@dataclasses.dataclass(frozen=True)
class Noop(Compressor):
    """Nothing travels, and all gradients become zero: shows how much time could be gained.

    The model does not learn. PyTorch's `noop_hook` has the same purpose.

    Args:
        not_training: must be True, to confirm that you know that the model does not learn.

    Example:

    >>> import tfdist
    >>> tfdist.compression.Noop(not_training=True).wire_bytes(None)
    0
    """

    name: ClassVar[str] = "noop"

    not_training: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.not_training is not True:
            raise ValueError(
                "`noop` exchanges nothing, so the model does not learn: it shows how much time "
                "compression could save at most. To measure that, use "
                "tfdist.compression.Noop(not_training=True). "
                f"Received: not_training={self.not_training!r}"
            )

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """Zero."""
        return 0

    def exchange(self, gradient: tf.Tensor, state: State, step: Step) -> Exchange:
        """Nothing travels. The gradient is still computed; TensorFlow would leave it out."""
        yield ()
        with tf.control_dependencies([gradient]):
            zeros = tf.zeros(gradient.shape, gradient.dtype)
        return Result(zeros, zeros, state)

    def restore(self, payloads: Sequence[Payload], spec: tf.TensorSpec, step: Step) -> tf.Tensor:
        """Zeros."""
        # The zero comes from the seed: TensorFlow would make a constant on the worker, and send it.
        zero = tf.clip_by_value(step.seed[0], 0, 0)
        return tf.fill(spec.shape, tf.cast(zero, spec.dtype))
