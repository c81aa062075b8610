"""Bounded: gradients that are too stale are dropped, or do not come about."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from tfdist.staleness.base import StalenessPolicy
from tfdist.validation import check_choice, check_integer


@dataclasses.dataclass(frozen=True)
class Bounded(StalenessPolicy):
    """No gradient with τ > max_staleness is ever applied.

    Bounded delay, after Agarwal and Duchi, "Distributed Delayed Stochastic Optimization" (NIPS
    2011), and Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI
    2014), "Flexible Consistency".

    Args:
        max_staleness: the bound on τ, 0 to 2**31 - 1.
        on_exceed: "drop" leaves out gradients that are too stale: nobody waits, but the work of a
            worker that is always slow is in vain. "wait" holds updates back while gradients that
            are being computed would become too stale by them, and lets no more than
            max_staleness + 1 workers compute at a time: nothing is in vain, but with a slow worker
            all others wait for it.

    Raises:
        ValueError: for options out of range.

    Example:

    >>> from tfdist import staleness
    >>> staleness.Bounded(4).accepts(5)
    False
    """

    max_staleness: int
    on_exceed: Literal["drop", "wait"] = "drop"

    def __post_init__(self) -> None:
        check_integer("max_staleness", self.max_staleness, 0)
        check_choice("on_exceed", self.on_exceed, ("drop", "wait"))

    def may_start(self, ahead: int, under_way: int) -> bool:
        """With "wait", whether all under way can be applied first without making it too stale."""
        del ahead
        return self.on_exceed == "drop" or under_way <= self.max_staleness

    def may_update(self, others: Sequence[int]) -> bool:
        """With "wait", whether all under way can still be applied after the update."""
        return self.on_exceed == "drop" or all(other <= self.max_staleness for other in others)

    def accepts(self, staleness: int) -> bool:
        """Whether τ is within the bound."""
        return staleness <= self.max_staleness
