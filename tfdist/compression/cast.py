"""fp16 and bf16: half of the bytes, by rounding to a narrower floating point type."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import tensorflow as tf

from tfdist.compression.base import Compressor, Payload, State, Step, as_gradient, nbytes
from tfdist.compression.registry import register


@dataclasses.dataclass(frozen=True)
class _Cast(Compressor):
    rounds_elements: ClassVar[bool] = True
    codes_rows: ClassVar[bool] = True
    dtype: ClassVar[tf.DType]

    def accepts(self, spec: tf.TensorSpec) -> bool:
        """Whether a variable of this shape and dtype is compressed: only if its dtype is wider."""
        return super().accepts(spec) and spec.dtype.size > self.dtype.size

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """The rounded gradient. Too large numbers become the largest number that can be sent."""
        limit = self._limit(step.replicas)
        clipped = tf.clip_by_value(gradient, -limit, limit)
        kept = tf.where(tf.math.is_finite(gradient), clipped, gradient)
        return (tf.cast(kept, self.dtype),), state

    def _limit(self, replicas: int) -> float:
        return float(self.dtype.max)

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The gradient, widened."""
        return as_gradient(payload[0], spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """Two bytes per element."""
        return nbytes(spec) // spec.dtype.size * self.dtype.size


@register
@dataclasses.dataclass(frozen=True)
class FP16(_Cast):
    """IEEE half precision: 2 bytes per element, 11 significant bits, up to 65504.

    Gradients smaller than 6e-8 become zero. Gradients larger than 65504/N become 65504/N, so that
    the sum over N replicas is finite.

    As in Horovod's `Compression.fp16`. Which gradients half precision can hold: Micikevicius et
    al., "Mixed Precision Training" (ICLR 2018), section 3.2.

    Example:

    >>> import tfdist
    >>> tfdist.compression.get("fp16")
    FP16(error_feedback=False, min_bytes=1024, start_step=0)
    """

    name: ClassVar[str] = "fp16"
    aggregation: ClassVar = "sum"
    dtype: ClassVar[tf.DType] = tf.float16

    def _limit(self, replicas: int) -> float:
        return 0.999 * super()._limit(replicas) / replicas  # the numbers of the sum are rounded


@register
@dataclasses.dataclass(frozen=True)
class BF16(_Cast):
    """bfloat16: 2 bytes per element, 8 significant bits, the range of float32.

    Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training" (arXiv 1905.12322), section 2.
    Neither TensorFlow nor Horovod can sum bfloat16. So each replica's payload travels to all other
    replicas: for more than 4 replicas, this is more traffic than without compression.

    Example:

    >>> import tfdist
    >>> tfdist.compression.BF16(error_feedback=True)
    BF16(error_feedback=True, min_bytes=1024, start_step=0)
    """

    name: ClassVar[str] = "bf16"
    dtype: ClassVar[tf.DType] = tf.bfloat16
