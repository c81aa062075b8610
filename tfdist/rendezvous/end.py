"""How the ranks of one machine have ended."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class End:
    """What a launcher says at the end, and what it is told of others.

    Attributes:
        status: the exit status; 0 when all went well.
        message: what happened, in one line.
        by_others: whether the ranks failed only because ranks of other machines were gone.
        host: the address of the machine.
    """

    status: int = 0
    message: str = ""
    by_others: bool = False
    host: str = ""
