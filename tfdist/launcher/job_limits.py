"""How long a job may take, and how often its processes may fail."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds, and how often they may fail.

    Attributes:
        total: for the whole job; None for no limit.
        stall: for which a rank may be stopped, for example by SIGSTOP.
        grace: for ranks that are told to end.
        restarts: how often a rank is started again, if its role says so; a number.
    """

    total: float | None = None
    stall: float = 60.0
    grace: float = 5.0
    restarts: int = 0
