"""Synchronous: no staleness at all."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfdist.staleness.base import StalenessPolicy


@dataclasses.dataclass(frozen=True)
class Synchronous(StalenessPolicy):
    """The workers compute parts of one global batch, and all parts together make one update.

    Strong consistency: training equals training on one device with the same global batches. Each
    step waits for the slowest worker. After Valiant, "A Bridging Model for Parallel Computation"
    (CACM 33(8), 1990).

    Example:

    >>> from tfdist import staleness
    >>> staleness.Synchronous().synchronous
    True
    """

    synchronous: ClassVar[bool] = True
