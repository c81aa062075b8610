"""What the launchers of a job agree on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tfdist.cluster.machines import Machine
from tfdist.strategies.backend import Environments


@dataclasses.dataclass(frozen=True)
class Terms:
    """How launchers meet.

    Attributes:
        address: "host:port" of the rendezvous.
        secret: what all launchers know.
        machines: how many launchers there are.
        patience: seconds to wait for them.
        same_everywhere: what all of them must have been given alike, by names for messages.
        across: makes the variables of all ranks; see `tfdist.strategies.backend.Launch`.
        say: tells the user what is waited for.
    """

    address: str
    secret: bytes = dataclasses.field(repr=False)
    machines: int
    patience: float
    same_everywhere: Mapping[str, str | int]
    across: Callable[[Sequence[Machine]], Environments]
    say: Callable[[str], None]
