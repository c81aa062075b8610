"""dgc: the largest elements of the momentum, which each replica keeps before the exchange."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

import keras
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
from tfdist.compression.registry import register
from tfdist.compression.selection import positions_of_largest
from tfdist.compression.sparsify import Sparse, check_ratio, size_of
from tfdist.validation import check_integer, check_number

# The ratio that is sent in each part of the warm-up (section 3.3: sparsity 75 %, 93.75 %, ...).
_WARM_UP = (0.25, 0.0625, 0.015625, 0.004)


@register
@dataclasses.dataclass(frozen=True)
class DGC(Sparse):
    """Deep Gradient Compression: the largest elements, with momentum corrected for the delay.

    Lin et al., "Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
    Training" (ICLR 2018): momentum correction (section 3.2, equation 4), momentum factor masking
    (section 3.3), selection by a sampled threshold (section 3), warm-up of the ratio (section 3.3).
    Local gradient clipping (section 3.2) is left out; the optimizer clips the global gradient.

    The compressor keeps the momentum, so the optimizer is `keras.optimizers.SGD` without momentum.
    Before `start_step` everything is sent, and the momentum is the usual one. Variables of fewer
    than `min_bytes` are always treated like this. Sparse gradients become dense, because the
    momentum is dense.

    Args:
        ratio: the part of the elements that is sent, above 0 and at most 1.
        momentum: 0 to below 1.
        warmup_steps: the number of updates in the warm-up, which follows `start_step`; 0 to
            2**31 - 1. The warm-up has four parts of equal length, and what is sent falls from part
            to part, from 1/4 to 1/250. Parts that would send no more than `ratio` are left out.

    Example:

    >>> import keras, tfdist
    >>> strategy = tfdist.MirroredStrategy(compression=tfdist.compression.DGC(0.01))
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    """

    name: ClassVar[str] = "dgc"

    ratio: float = 0.001
    momentum: float = 0.9
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_ratio("ratio", self.ratio)
        check_number("momentum", self.momentum, 0)
        check_integer("warmup_steps", self.warmup_steps, 0)
        if self.momentum >= 1.0:
            raise ValueError(f"`momentum` must be below 1. Received: momentum={self.momentum!r}")
        if self.error_feedback:
            raise ValueError(
                "DGC keeps what it did not send itself, corrected for momentum; leave "
                "error_feedback out. Received: error_feedback=True"
            )

    @property
    def keeps_momentum(self) -> bool:
        """Whether there is a momentum."""
        return self.momentum > 0.0

    def for_variable(self, spec: tf.TensorSpec) -> Compressor | None:
        """Small variables are sent whole, but by this compressor: their momentum is here too."""
        if self.accepts(spec) or not self.keeps_momentum:
            return super().for_variable(spec)
        whole = dataclasses.replace(self, ratio=1.0, min_bytes=0, start_step=0, warmup_steps=0)
        return whole if whole.accepts(spec) else None

    @property
    def aggregation(self) -> Literal["sum", "gather"]:  # type: ignore[override]
        """Sums where everything is sent."""
        return "sum" if self.ratio == 1.0 else "gather"

    def stages(self) -> list[tuple[int, Compressor]]:
        """The parts of the warm-up, each with its ratio, and what follows."""
        ratios = [ratio for ratio in _WARM_UP if ratio > self.ratio] if self.warmup_steps else []
        firsts = [
            self.start_step + self.warmup_steps * part // len(_WARM_UP)
            for part in range(len(ratios) + 1)
        ]
        changes = [(0, 1.0)] if self.start_step else []
        changes += zip(firsts, [*ratios, self.ratio])
        return [(first, dataclasses.replace(self, ratio=ratio)) for first, ratio in changes]

    def check_optimizer(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Raises ValueError unless the momentum is the compressor's alone."""
        plain = isinstance(optimizer, keras.optimizers.SGD) and not optimizer.momentum
        if self.momentum and not plain:
            raise ValueError(
                "DGC has the momentum itself. Use keras.optimizers.SGD without momentum, or "
                "DGC(momentum=0.0). "
                f"Received: {type(optimizer).__name__} with momentum="
                f"{getattr(optimizer, 'momentum', None)} and DGC(momentum={self.momentum})"
            )

    def init(self, spec: tf.TensorSpec) -> State:
        """The momentum u, and v, which has not been sent yet (algorithm 1)."""
        return {name: tf.zeros(spec.shape, tf.float32) for name in ("velocity", "unsent")}

    def exchange(self, gradient: tf.Tensor, state: State, step: Step) -> Exchange:
        """Adds to the momentum and to the unsent rest, and sends the rest's largest elements."""
        spec = tf.TensorSpec(gradient.shape, gradient.dtype)
        velocity = self.momentum * state["velocity"] + gradient
        unsent = state["unsent"] + velocity
        if self.ratio == 1.0:
            received = yield (unsent,)
            kept = {"velocity": velocity, "unsent": tf.zeros_like(unsent)}
            return Result(self.decode(received, spec), unsent, kept)
        flat = tf.reshape(unsent, [-1])
        chosen = positions_of_largest(flat, self._size(spec), step.own_seed)
        payload = self._payload(flat, chosen)
        received = yield payload
        kept = {
            "velocity": _without(velocity, chosen),
            "unsent": _without(unsent, chosen),
        }
        own = self.decode(payload, spec)
        return Result(self._total(received, spec), own, kept, kept["unsent"])

    def decode(self, payload: Payload, spec: tf.TensorSpec) -> tf.Tensor:
        """The elements that were sent, and zeros elsewhere."""
        if self.ratio == 1.0:
            return as_gradient(payload[0], spec)
        return super().decode(payload, spec)

    def wire_bytes(self, spec: tf.TensorSpec) -> int:
        """Four bytes per element that is sent, and the bytes of the positions."""
        return 4 * self._size(spec) if self.ratio == 1.0 else super().wire_bytes(spec)

    def _size(self, spec: tf.TensorSpec) -> int:
        return size_of(self.ratio, spec)


def _without(value: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
    """`value` with zeros at these positions of its elements."""
    zeros = tf.zeros_like(positions, value.dtype)
    flat = tf.tensor_scatter_nd_update(tf.reshape(value, [-1]), positions[:, None], zeros)
    return tf.reshape(flat, value.shape)
