"""powersgd: the product of two thin matrices."""

from __future__ import annotations

import dataclasses
import math
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
)
from tfdist.compression.numbers import largest, quotient
from tfdist.compression.registry import register
from tfdist.validation import check_integer


@register
@dataclasses.dataclass(frozen=True)
class PowerSGD(Compressor):
    """A matrix of low rank near the sum of all replicas' gradients, by one power iteration.

    Vogels et al., "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization"
    (NeurIPS 2019), algorithm 1, with warm start (section 4.2) and error feedback (algorithm 2). A
    kernel of more than two axes becomes the matrix for which the fewest bytes travel: a query's
    kernel of [256, 8, 32] becomes [256, 256], a convolution's of [3, 3, 64, 64] becomes [576, 64].
    Its first axes are the rows, the others the columns. For a gradient M of
    shape [n, m], first M Q of shape [n, rank] is exchanged, then Mᵀ P of shape [m, rank]. Where
    this would not be less than n m elements, as for vectors, the variable travels uncompressed.

    Args:
        rank: r, 1 to 2**31 - 1. 1 to 4 are usual.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.PowerSGD(rank=2).wire_bytes(tf.TensorSpec([100, 50], tf.float32))
    1200
    """

    name: ClassVar[str] = "powersgd"
    aggregation: ClassVar = "sum"
    per_tensor: ClassVar[bool] = True
    codes_tables: ClassVar[bool] = True
    shared_state: ClassVar[frozenset[str]] = frozenset({"right"})

    rank: int = 4
    error_feedback: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("rank", self.rank, 1)

    def accepts(self, spec: tf.TensorSpec) -> bool:
        """Whether a variable is compressed: only if the payload is smaller than the gradient."""
        return super().accepts(spec) and self.wire_bytes(spec) < 4 * math.prod(spec.shape)

    def init(self, spec: tf.TensorSpec) -> State:
        """Q: random at first, the same on all replicas (algorithm 1, line 1)."""
        rows, columns = _matrix(spec)
        seed = tf.constant([rows, columns], tf.int32)
        return {"right": tf.random.stateless_normal([columns, self._rank(spec)], seed)}

    def exchange(self, gradient: tf.Tensor, state: State, step: Step) -> Exchange:
        """Algorithm 1, lines 3 to 7."""
        spec = tf.TensorSpec(gradient.shape, gradient.dtype)
        matrix = tf.reshape(gradient, _matrix(spec))
        (left,) = yield (tf.linalg.matmul(matrix, state["right"]),)
        left = _orthonormal(left)
        # TensorFlow is slow when it multiplies with the large matrix transposed.
        own_right = tf.transpose(tf.linalg.matmul(left, matrix, transpose_a=True))
        (right,) = yield (own_right,)
        total, own = (_product(left, r, spec) for r in (right, own_right))
        # Every column needs a direction, also after a gradient of zeros: otherwise the next power
        # iteration would find nothing.
        kept = {"right": _orthonormal(right)}
        return Result(total, own, kept)

    def restore(self, payloads: Sequence[Payload], spec: tf.TensorSpec, step: Step) -> tf.Tensor:
        """The product of both factors."""
        (left,), (right,) = payloads
        return _product(_orthonormal(left), right, spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """Four bytes for each element of both factors."""
        return 4 * self._rank(spec) * sum(_matrix(spec))

    def _rank(self, spec: tf.TensorSpec) -> int:
        return max(1, min(self.rank, *_matrix(spec)))


def _matrix(spec: tf.TensorSpec) -> tuple[int, int]:
    """Rows and columns: the first axes and the others, so that the two together are fewest."""
    shape = list(spec.shape)
    cuts = [(math.prod(shape[:cut]), math.prod(shape[cut:])) for cut in range(1, len(shape))]
    return min(reversed(cuts), key=sum, default=(math.prod(shape), 1))


def _product(left: tf.Tensor, right: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    return as_gradient(tf.linalg.matmul(left, right, transpose_b=True), spec)


def _orthonormal(matrix: tf.Tensor) -> tf.Tensor:
    """An orthonormal basis whose span contains the columns of `matrix`."""
    scaled = quotient(matrix, largest(matrix))
    return tf.linalg.qr(scaled).q
