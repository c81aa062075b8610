"""DelayCompensated: a stale gradient is corrected for the updates since it was computed."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import tensorflow as tf

from tfdist.arguments import check_bool
from tfdist.staleness.base import StalenessPolicy
from tfdist.validation import check_number

_DECAY = 0.95
_EPSILON = 1e-7


@dataclasses.dataclass(frozen=True)
class DelayCompensated(StalenessPolicy):
    """Adds lam · g ⊙ g ⊙ (w_now − w_read) to a gradient g: about how much g has changed since.

    Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation" (ICML 2017),
    algorithm 2 (what the parameter server does). Sparse gradients become dense.

    The moving averages of `adaptive` are in no checkpoint: resumed training begins them anew. With
    accumulation, gradients may be kept past the end of an epoch. Then w_read is the weights that
    the newest step has read.

    Args:
        lam: the factor λ, >= 0; the paper uses 0.04 (λ0 of DC-ASGD-c) and 2 (of DC-ASGD-a).
        adaptive: divides λ by the root of a moving average (0.95) of the squared gradient
            (DC-ASGD-a in the paper). This takes one more variable for each trained variable.

    Raises:
        ValueError: for options out of range.

    Example:

    >>> from tfdist import staleness
    >>> staleness.DelayCompensated(lam=2.0, adaptive=True).compensates
    True
    """

    compensates: ClassVar[bool] = True

    lam: float = 0.04
    adaptive: bool = False

    def __post_init__(self) -> None:
        check_number("lam", self.lam, 0)
        check_bool("adaptive", self.adaptive)

    def init(self, variable: tf.Variable) -> Any:
        """The moving average of the squared gradient, where λ adapts."""
        if not self.adaptive:
            return None
        with tf.device(variable.device):
            return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)

    def compensate(self, gradient: tf.Tensor, moved: tf.Tensor, state: tf.Tensor) -> tf.Tensor:
        """The corrected gradient."""
        square = tf.square(gradient)
        lam = tf.cast(self.lam, gradient.dtype)
        if state is not None:
            mean = _DECAY * tf.convert_to_tensor(state) + (1 - _DECAY) * square
            state.assign(mean)
            lam /= tf.sqrt(mean + _EPSILON)
        return gradient + lam * square * moved
