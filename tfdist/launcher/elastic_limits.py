"""How an elastic job may change."""

from __future__ import annotations

import dataclasses
import math


@dataclasses.dataclass(frozen=True)
class ElasticLimits:
    """How an elastic job may change.

    Attributes:
        least: how few ranks may be left.
        most: how many ranks there may be.
        restarts: how many ranks that were killed are replaced by new ones.
        patience: seconds for which too few ranks wait for new ones.
        spares: how many new ranks are started before they are needed.
        is_open: whether others may come by themselves, or be added.
        backup_dir: the folder in which the state is kept before the job ends; "" for none.
    """

    least: int
    most: float = math.inf
    restarts: int = 0
    patience: float = math.inf
    spares: int = 0
    is_open: bool = False
    backup_dir: str = ""
