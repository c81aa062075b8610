"""What the group of an elastic job can do to the job."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tfdist.launcher.outcome import Outcome


@dataclasses.dataclass(frozen=True)
class Hands:
    """What the group of an elastic job can do to the job of its launcher.

    Attributes:
        say: tells the user something, in one line.
        kill: ends the rank with a number.
        start: starts a process with a number, of the kind of a `Member`.
        end: ends the job with an outcome, after so many seconds.
    """

    say: Callable[[str], None]
    kill: Callable[[int], None]
    start: Callable[[int, str], None]
    end: Callable[[Outcome, float], None]
