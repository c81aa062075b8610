"""topk, threshold and randomk: a few elements, and their positions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import tensorflow as tf

from tfdist.compression import positions
from tfdist.compression.base import (
    Compressor,
    Exchange,
    Payload,
    Result,
    State,
    Step,
    as_gradient,
)
from tfdist.compression.registry import register
from tfdist.compression.selection import positions_of_largest
from tfdist.validation import check_number


def check_ratio(name: str, ratio: float) -> None:
    """Raises ValueError unless `ratio` is a part of the whole."""
    check_number(name, ratio, 0, exclusive=True)
    if ratio > 1.0:
        raise ValueError(f"`{name}` must be at most 1. Received: {name}={ratio!r}")


def size_of(ratio: float, spec: tf.TensorSpec) -> int:
    """The number of elements in a part of `ratio`, at least one."""
    return max(1, min(math.prod(spec.shape), math.ceil(ratio * math.prod(spec.shape))))


class Sparse(Compressor):
    """Base of the compressors that send some elements with their positions."""

    sparsifies: ClassVar[bool] = True

    def _size(self, spec: tf.TensorSpec) -> int:
        """The largest number of elements that a payload may have."""
        raise NotImplementedError

    def _payload(self, flat: tf.Tensor, chosen: tf.Tensor) -> Payload:
        """The elements of `flat` at the positions `chosen`, ascending int32.

        If any element is not finite, only NaN is sent: that element may not be among the chosen.
        """
        length = flat.shape[0]
        size = self._size(tf.TensorSpec([length], flat.dtype))
        chosen = chosen[:size]
        values = tf.pad(tf.gather(flat, chosen), [[0, size - tf.shape(chosen)[0]]])
        values = tf.where(tf.reduce_all(tf.math.is_finite(flat)), values, float("nan"))
        return tf.ensure_shape(values, [size]), positions.encode(chosen, size, length)

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The elements at their positions, zeros elsewhere."""
        values, encoded = payload
        length, size = math.prod(spec.shape), self._size(spec)
        where = positions.decode(encoded, size, length)
        # What stands for a missing element goes behind the end, unless it is NaN, which must count.
        where = tf.where(tf.math.is_nan(values), tf.minimum(where, length - 1), where)
        sparse = tf.math.unsorted_segment_sum(values, where, length + 1)
        return as_gradient(sparse[:length], spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """Four bytes per element that is sent, and the bytes of the positions."""
        size = self._size(spec)
        return 4 * size + positions.nbytes(size, math.prod(spec.shape))


@register
@dataclasses.dataclass(frozen=True)
class TopK(Sparse):
    """The elements of largest magnitude.

    Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017), section
    3; with error feedback also Stich et al., "Sparsified SGD with Memory" (NeurIPS 2018). In a
    vector that is longer than 32768, more than 3200 elements are found by a sampled threshold.
    Then, seldom, a few percent fewer are found; every element found is among the largest.

    Args:
        ratio: the part of the elements that is sent, above 0 and at most 1.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.TopK(0.01).wire_bytes(tf.TensorSpec([100_000], tf.float32))
    5393
    """

    name: ClassVar[str] = "topk"

    ratio: float = 0.01
    error_feedback: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("ratio", self.ratio)

    def contraction(self, spec: tf.TensorSpec) -> float:
        """k/n (Stich et al., equation 3 and remark after it), less what the sample may miss."""
        return 0.7 * self._size(spec) / math.prod(spec.shape)

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """The largest elements and their positions."""
        flat = tf.reshape(gradient, [-1])
        size = self._size(tf.TensorSpec(gradient.shape, gradient.dtype))
        return self._payload(flat, positions_of_largest(flat, size, step.own_seed)), state

    def _size(self, spec: tf.TensorSpec) -> int:
        return size_of(self.ratio, spec)


@register
@dataclasses.dataclass(frozen=True)
class Threshold(Sparse):
    """All elements whose magnitude reaches a threshold, up to a part of all of them.

    Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing" (Interspeech
    2015), section 3. The elements travel with their values instead of ± threshold. All replicas
    always send equally many bytes: `max_ratio` says how many. If more elements reach the threshold
    than fit, the largest travel, as with `TopK`.

    Args:
        threshold: the smallest magnitude that is sent, above 0. It is compared with a replica's
            part of the global gradient. With N replicas, a part is about 1/N of that gradient.
        max_ratio: the part of the elements for which there is room, above 0 and at most 1.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> codec = tfdist.compression.Threshold(0.001, max_ratio=0.02)
    >>> codec.wire_bytes(tf.TensorSpec([100_000], tf.float32))
    10393
    """

    name: ClassVar[str] = "threshold"

    threshold: float = 0.001
    max_ratio: float = 0.05
    error_feedback: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("threshold", self.threshold, 0, exclusive=True)
        check_ratio("max_ratio", self.max_ratio)

    def encode(self, gradient: tf.Tensor, state: State, step: Step) -> tuple[Payload, State]:
        """The elements that reach the threshold, and their positions."""
        flat = tf.reshape(gradient, [-1])
        size = self._size(tf.TensorSpec(gradient.shape, gradient.dtype))
        chosen = positions_of_largest(flat, size, step.own_seed, self.threshold)
        return self._payload(flat, chosen), state

    def _size(self, spec: tf.TensorSpec) -> int:
        return size_of(self.max_ratio, spec)


@register
@dataclasses.dataclass(frozen=True)
class RandomK(Compressor):
    """Elements drawn at random, the same on all replicas, so that only their sums travel.

    With error feedback: Stich et al., "Sparsified SGD with Memory" (NeurIPS 2018), definition 2.1.
    Without error feedback the values are scaled by n/k, and their mean is the gradient (Wangni et
    al., "Gradient Sparsification for Communication-Efficient Distributed Optimization", NeurIPS
    2018). With much momentum and a small ratio, training does not converge: watch it with
    `tfdist.callbacks.CompressionMonitor`.

    Args:
        ratio: the part of the elements that is sent, above 0 and at most 1.

    Example:

    >>> import tensorflow as tf, tfdist
    >>> tfdist.compression.RandomK(0.01).wire_bytes(tf.TensorSpec([100_000], tf.float32))
    4000
    """

    name: ClassVar[str] = "randomk"
    aggregation: ClassVar = "sum"
    sparsifies: ClassVar[bool] = True

    ratio: float = 0.01
    error_feedback: bool = dataclasses.field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("ratio", self.ratio)

    @property
    def unbiased(self) -> bool:
        """Without error feedback."""
        return not self.error_feedback

    def contraction(self, spec: tf.TensorSpec) -> float | None:
        """None: k/n holds only in the mean (Stich et al., equation 3)."""
        return None

    def exchange(self, gradient: tf.Tensor, state: State, step: Step) -> Exchange:
        """Sums the elements at positions that the common seed gives."""
        spec = tf.TensorSpec(gradient.shape, gradient.dtype)
        length, size = math.prod(spec.shape), size_of(self.ratio, spec)
        where = self._where(spec, step)
        flat = tf.reshape(gradient, [-1])
        scale = 1.0 if self.error_feedback else length / size
        values = tf.gather(flat, where) * scale
        values = tf.where(tf.reduce_all(tf.math.is_finite(flat)), values, float("nan"))
        (sums,) = yield (values,)
        total, own = (_at_positions(v, where, spec) for v in (sums, values))
        return Result(total, own, state)

    def restore(self, payloads: Sequence[Payload], spec: tf.TensorSpec, step: Step) -> tf.Tensor:
        """The elements at the positions that the common seed gives."""
        ((values,),) = payloads
        return _at_positions(values, self._where(spec, step), spec)

    def _where(self, spec: tf.TensorSpec, step: Step) -> tf.Tensor:
        return _different_positions(size_of(self.ratio, spec), math.prod(spec.shape), step.seed)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """Four bytes per element that is sent."""
        return 4 * size_of(self.ratio, spec)


def _at_positions(values: tf.Tensor, where: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    return as_gradient(tf.math.unsorted_segment_sum(values, where, math.prod(spec.shape)), spec)


def _different_positions(size: int, length: int, seed: tf.Tensor) -> tf.Tensor:
    """`size` different positions out of `length`, all with the same probability.

    TensorFlow's shuffle prefers some positions. Turned by a random distance, it prefers none.
    """
    places = tf.random.experimental.index_shuffle(tf.range(size), seed, length - 1)
    return (places + tf.random.stateless_uniform([], seed, 0, length, tf.int32)) % length
