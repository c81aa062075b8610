"""Bounded: gradients that are too stale are dropped, or updates wait so that none becomes so."""

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
        on_exceed: "drop" leaves out gradients that are too stale. Nobody waits, but the work of a
            worker that is always slow is in vain. "wait" holds an update back while it would make a
            gradient that is being computed too stale, and lets at most max_staleness + 1 workers
            compute at a time. No work is in vain, but all workers wait for a slow worker.

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

    @property
    def waits(self) -> bool:
        """With "wait"."""
        return self.on_exceed == "wait"

    def may_start(self, ahead: int, under_way: int) -> bool:
        """With "wait": whether the new gradient is in time if all under way are applied first."""
        del ahead
        return self.on_exceed == "drop" or under_way <= self.max_staleness

    def may_update(self, others: Sequence[int]) -> bool:
        """With "wait": whether all gradients under way can still be applied after the update."""
        return self.on_exceed == "drop" or all(other <= self.max_staleness for other in others)

    def accepts(self, staleness: int) -> bool:
        """Whether τ is within the bound."""
        return staleness <= self.max_staleness
