"""SSP: a fast worker waits when it is too far ahead."""

from __future__ import annotations

import dataclasses

from tfdist.staleness.base import StalenessPolicy
from tfdist.validation import check_integer


@dataclasses.dataclass(frozen=True)
class SSP(StalenessPolicy):
    """A worker that is more than `slack` steps ahead of the slowest worker starts no step.

    Stale synchronous parallel: Ho et al., "More Effective Distributed ML via a Stale Synchronous
    Parallel Parameter Server" (NIPS 2013), section 2. The policy helps where the slow worker is a
    different one from time to time. Where it is always the same worker, all others soon go at its
    pace. A lost worker does not count. A worker that comes back counts as level with the slowest.

    Args:
        slack: the number of steps, 0 to 2**31 - 1. With 0, all workers finish a step before any
            worker starts the next.

    Raises:
        ValueError: when `slack` is out of range.

    Example:

    >>> from tfdist import staleness
    >>> staleness.SSP(3).may_start(ahead=4, under_way=0)
    False
    """

    slack: int

    def __post_init__(self) -> None:
        check_integer("slack", self.slack, 0)

    def may_start(self, ahead: int, under_way: int) -> bool:
        """Whether a worker that is `ahead` steps ahead of the slowest is within the slack."""
        del under_way
        return ahead <= self.slack
