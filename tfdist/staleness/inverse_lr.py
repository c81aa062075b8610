"""InverseLR: a stale gradient moves the weights less."""

from __future__ import annotations

import dataclasses

from tfdist.staleness.base import StalenessPolicy
from tfdist.validation import check_number


@dataclasses.dataclass(frozen=True)
class InverseLR(StalenessPolicy):
    """The learning rate of an update is divided by max(τ, 1)^power.

    Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning" (IJCAI 2016), the
    learning rate α/τ, where power is 1. The learning rate is divided rather than the gradient,
    because Adam would scale a divided gradient back. The cost: with a learning rate so small that
    stale gradients do no harm, training takes longer with this policy than without it.

    Args:
        power: the exponent, >= 0; 0 has no effect.

    Raises:
        ValueError: when `power` is out of range.

    Example:

    >>> from tfdist import staleness
    >>> staleness.InverseLR().learning_rate_factor(4)
    0.25
    """

    power: float = 1.0

    def __post_init__(self) -> None:
        check_number("power", self.power, 0)

    def learning_rate_factor(self, staleness: int) -> float:
        """1 / max(τ, 1)^power."""
        return float(max(staleness, 1)) ** -self.power
