"""signsgd and onebit: one bit per element."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import tensorflow as tf

from tfdist.compression import bits
from tfdist.compression.base import Compressor, Payload, State, Step, as_gradient
from tfdist.compression.numbers import largest, mean_magnitude, quotient
from tfdist.compression.registry import register
from tfdist.validation import check_choice


@dataclasses.dataclass(frozen=True)
class _Sign(Compressor):
    """Base of `SignSGD` and `OneBit`."""

    scale: Literal["column", "tensor", "bucket"] = "tensor"
    error_feedback: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, ("column", "tensor", "bucket"))

    @property
    def per_tensor(self) -> bool:  # type: ignore[override]
        """Whether the compressor sees each variable's gradient by itself."""
        return self.scale != "bucket"

    def _columns(self, shape: tf.TensorShape) -> int:
        """How many parts of a gradient have a scale of their own."""
        return shape[-1] if self.scale == "column" and shape.rank > 1 else 1

    def contraction(self, spec: tf.TensorSpec) -> float:
        """At least 1/n (Karimireddy et al., lemma 8). A mean for each sign is no worse."""
        return 1.0 / math.prod(spec.shape)


@register
@dataclasses.dataclass(frozen=True)
class SignSGD(_Sign):
    """The signs, 8 to a byte, times the mean magnitude.

    Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex Problems" (ICML 2018),
    algorithm 1. Scale and error feedback are those of Karimireddy et al. (ICML 2019), algorithm 1:
    without either, training does not converge on their counter-examples (section 3). Zero counts as
    positive.

    Args:
        scale: "tensor", a mean for each variable; "column", a mean for each index of a variable's
            last axis; or "bucket", a mean for all variables of a bucket.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.SignSGD().wire_bytes(tf.TensorSpec([1000], tf.float32))
    129
    """

    name: ClassVar[str] = "signsgd"

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """The signs' bits, and the mean magnitudes."""
        flat = tf.reshape(gradient, [-1])
        positive = bits.pack(tf.cast(flat >= 0.0, tf.float32), 2)
        columns = tf.reshape(gradient, [-1, self._columns(gradient.shape)])
        return (positive, mean_magnitude(columns, axis=0)), state

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The signs times the mean magnitude."""
        positive, scale = payload
        signs = bits.unpack(positive, (-1.0, 1.0), math.prod(spec.shape))
        return as_gradient(tf.reshape(signs, [-1, scale.shape[0]]) * scale, spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """A byte for 8 elements, and 4 for each scale."""
        return bits.packed_size(math.prod(spec.shape), 2) + 4 * self._columns(spec.shape)


@register
@dataclasses.dataclass(frozen=True)
class OneBit(_Sign):
    """The signs, 8 to a byte: the mean of the positive elements, or the mean of the others.

    Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel
    Distributed Training of Speech DNNs" (Interspeech 2014), section 3.2.

    Args:
        scale: "column", means for each index of a variable's last axis, as in the paper; "tensor",
            for each variable; or "bucket", for all variables of a bucket.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.OneBit().wire_bytes(tf.TensorSpec([1000, 10], tf.float32))
    1330
    """

    name: ClassVar[str] = "onebit"

    scale: Literal["column", "tensor", "bucket"] = "column"

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """The signs' bits, and both means."""
        columns = tf.reshape(gradient, [-1, self._columns(gradient.shape)])
        positive = tf.cast(columns >= 0.0, tf.float32)
        top = largest(columns)
        relative = quotient(columns, top)
        count = tf.reduce_sum(positive, axis=0)
        above = tf.reduce_sum(relative * positive, axis=0)
        below = tf.reduce_sum(relative, axis=0) - above
        rows = float(columns.shape[0])
        means = tf.stack([below / tf.maximum(rows - count, 1.0), above / tf.maximum(count, 1.0)])
        return (bits.pack(tf.reshape(positive, [-1]), 2), means * top), state

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """For each element, the mean of all elements of its sign."""
        positive, means = payload
        chosen = bits.unpack(positive, (0.0, 1.0), math.prod(spec.shape))
        chosen = tf.reshape(chosen, [-1, means.shape[1]])
        return as_gradient(means[0] + chosen * (means[1] - means[0]), spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """A byte for 8 elements, and 8 for each pair of means."""
        return bits.packed_size(math.prod(spec.shape), 2) + 8 * self._columns(spec.shape)
