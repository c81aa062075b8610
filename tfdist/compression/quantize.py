"""int8, qsgd and terngrad: whole multiples of a scale."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Literal

import tensorflow as tf

from tfdist.compression import bits
from tfdist.compression.base import Compressor, Payload, State, Step, as_gradient
from tfdist.compression.numbers import largest, quotient, round_randomly
from tfdist.compression.registry import register
from tfdist.validation import check_choice, check_integer, check_number


@register
@dataclasses.dataclass(frozen=True)
class Int8(Compressor):
    """One byte per element: multiples of 1/127 of the largest magnitude.

    Dettmers, "8-Bit Approximations for Parallelism in Deep Learning" (ICLR 2016), section 2.2.3,
    "linear quantization".

    Args:
        scale: "bucket", one scale for all variables of a bucket, or "tensor", one for each
            variable.
        rounding: "nearest", or "stochastic": then the mean of the rounded values is the gradient.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.Int8().wire_bytes(tf.TensorSpec([1000], tf.float32))
    1004
    """

    name: ClassVar[str] = "int8"

    scale: Literal["bucket", "tensor"] = "bucket"
    rounding: Literal["nearest", "stochastic"] = "nearest"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("scale", self.scale, ("bucket", "tensor"))
        check_choice("rounding", self.rounding, ("nearest", "stochastic"))

    @property
    def per_tensor(self) -> bool:  # type: ignore[override]
        """Whether the compressor sees each variable's gradient by itself."""
        return self.scale == "tensor"

    @property
    def unbiased(self) -> bool:
        """With stochastic rounding."""
        return self.rounding == "stochastic"

    @property
    def shrinks(self) -> bool:
        """Always: no element lacks more than 1/127 of the largest magnitude."""
        return True

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """The multiples, and the largest magnitude."""
        top = largest(gradient)
        multiples = quotient(tf.reshape(gradient, [-1]), top) * 127.0
        if self.rounding == "stochastic":
            multiples = round_randomly(multiples, step.own_seed)
        else:
            multiples = tf.round(multiples)
        return (tf.cast(tf.clip_by_value(multiples, -127.0, 127.0), tf.int8), top[None]), state

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The multiples times the scale."""
        multiples, top = payload
        return as_gradient(tf.cast(multiples, tf.float32) * (top / 127.0), spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """One byte per element, and 4 for the scale."""
        return math.prod(spec.shape) + 4


@register
@dataclasses.dataclass(frozen=True)
class QSGD(Compressor):
    """A few levels between zero and the norm, rounded at random so that the mean is the gradient.

    Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding"
    (NeurIPS 2017), section 3.1, equation 1. Each group of elements has a norm of its own; groups
    are the "buckets" of section 4. Levels travel with a fixed number of bits, not in the paper's
    Elias code.

    With few levels, leave `error_feedback` out: the mean squared error may be up to √group/s times
    the squared norm of the gradient (lemma 3.1 (ii)). If this factor is above 1, the unsent rest
    may grow.

    Args:
        levels: s, 1 to 2**30. What an element takes: with 1 to 2 levels 3 to 5 elements share a
            byte; with up to 7 levels 2 share a byte; with up to 127 levels an element takes one
            byte, with up to 32,767 2 bytes, and with up to 2**30 4 bytes.
        group: number of elements with a norm of their own, 1 to 2**31 - 1.
        norm: "l2" as in equation 1, or "max", the largest magnitude, with less variance (section
            4).

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.QSGD(levels=4).wire_bytes(tf.TensorSpec([1024], tf.float32))
    520
    """

    name: ClassVar[str] = "qsgd"

    levels: int = 4
    group: int = 512
    norm: Literal["l2", "max"] = "l2"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("levels", self.levels, 1, 2**30)  # 4 bytes with their signs
        check_integer("group", self.group, 1)
        check_choice("norm", self.norm, ("l2", "max"))

    @property
    def unbiased(self) -> bool:
        """Lemma 3.1 (i)."""
        return True

    @property
    def shrinks(self) -> bool:
        """With enough levels: no element lacks more than a level, that is norm / levels."""
        return self.levels > (1.0 if self.norm == "max" else math.sqrt(self.group))

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """Levels with signs, and the groups' norms."""
        flat = tf.reshape(gradient, [-1])
        missing = -flat.shape[0] % self._group(flat.shape[0])
        rows = tf.reshape(tf.pad(flat, [[0, missing]]), [-1, self._group(flat.shape[0])])
        norms = largest(rows, axis=1)
        if self.norm == "l2":
            norms *= tf.norm(quotient(rows, norms), axis=1, keepdims=True)
        signed = quotient(rows, norms) * self.levels
        chosen = tf.sign(signed) * round_randomly(tf.abs(signed), step.own_seed)
        chosen = tf.clip_by_value(chosen, -float(self.levels), float(self.levels))
        chosen = tf.reshape(chosen, [-1])[: flat.shape[0]]
        return (self._narrow(chosen), tf.reshape(norms, [-1])), state

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The levels times their groups' norms."""
        levels, norms = payload
        count = math.prod(spec.shape)
        if self._packed:
            values = [digit - self.levels for digit in range(2 * self.levels + 1)]
            steps = bits.unpack(levels, values, count)
        else:
            steps = tf.cast(levels, tf.float32)
        group = self._group(count)
        rows = tf.reshape(tf.pad(steps, [[0, -count % group]]), [-1, group])
        flat = tf.reshape(rows * (norms[:, None] / self.levels), [-1])[:count]
        return as_gradient(flat, spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """The levels' bytes, and 4 per group."""
        count = math.prod(spec.shape)
        return self._level_bytes(count) + 4 * -(-count // self._group(count))

    def _group(self, count: int) -> int:
        return min(self.group, max(1, count))

    def _level_bytes(self, count: int) -> int:
        if self._packed:
            return bits.packed_size(count, 2 * self.levels + 1)
        return count * self._integers.size

    def _narrow(self, levels: tf.Tensor) -> tf.Tensor:
        if self._packed:
            return bits.pack(levels + float(self.levels), 2 * self.levels + 1)
        return tf.cast(levels, self._integers)

    @property
    def _packed(self) -> bool:
        return 2 * self.levels < 256

    @property
    def _integers(self) -> tf.DType:
        return tf.int16 if self.levels < 2**15 else tf.int32


@register
@dataclasses.dataclass(frozen=True)
class TernGrad(Compressor):
    """−1, 0 or 1 times each variable's largest magnitude, 5 elements per byte.

    Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep Learning"
    (NeurIPS 2017), equations 2 to 4; layer-wise scales and clipping as in section 3.3.

    Args:
        clip: elements are first clipped to so many standard deviations around zero, the mean that
            the paper assumes (equation 11). None for no clipping: then the mean is the gradient.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.TernGrad().wire_bytes(tf.TensorSpec([1000], tf.float32))
    204
    """

    name: ClassVar[str] = "terngrad"
    per_tensor: ClassVar[bool] = True

    clip: float | None = 2.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            check_number("clip", self.clip, 0, exclusive=True)

    @property
    def unbiased(self) -> bool:
        """Without clipping."""
        return self.clip is None

    @property
    def shrinks(self) -> bool:
        """Never: an element may lack as much as the largest magnitude."""
        return False

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """Ternary digits, and the scale."""
        flat = tf.reshape(gradient, [-1])
        top = largest(flat)
        relative = quotient(flat, top)
        if self.clip is not None:
            deviation = tf.sqrt(tf.reduce_mean(tf.square(relative)))
            limit = tf.minimum(1.0, self.clip * deviation)
            relative = quotient(tf.clip_by_value(relative, -limit, limit), limit)
            top *= limit
        ternary = tf.sign(relative) * round_randomly(tf.abs(relative), step.own_seed)
        return (bits.pack(tf.clip_by_value(ternary, -1.0, 1.0) + 1.0, 3), top[None]), state

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The digits times the scale."""
        digits, top = payload
        values = bits.unpack(digits, (-1.0, 0.0, 1.0), math.prod(spec.shape))
        return as_gradient(values * top, spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """A byte for 5 elements, and 4 for the scale."""
        return bits.packed_size(math.prod(spec.shape), 3) + 4
