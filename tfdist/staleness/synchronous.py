"""Synchronous: no staleness at all."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfdist.staleness.base import StalenessPolicy


@dataclasses.dataclass(frozen=True)
class Synchronous(StalenessPolicy):
    """The workers compute parts of one global batch, and one update follows from all of them.

    Strong consistency: training equals that on one device with the same global batches. It waits
    for the slowest worker at each step; after Valiant, "A Bridging Model for Parallel Computation"
    (CACM 33(8), 1990).

    Example:

    >>> from tfdist import staleness
    >>> staleness.Synchronous().synchronous
    True
    """

    synchronous: ClassVar[bool] = True
