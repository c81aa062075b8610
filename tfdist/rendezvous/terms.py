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
        patience: seconds to wait for them.
        same_everywhere: what all of them must have been given alike, by names for messages.
        say: tells the user what is waited for.
    """

    address: str
    secret: bytes = dataclasses.field(repr=False)
    patience: float
    same_everywhere: Mapping[str, str | float | None]
    say: Callable[[str], None]

    def refusal(self, here: str, given: Mapping[str, str | float | None], there: str) -> str:
        """Why there can be no job with another launcher; "" if there can.

        Args:
            here: the machine of this launcher.
            given: what the other one was given.
            there: its machine.
        """
        for name in self.same_everywhere.keys() | given.keys():
            own, other = self.same_everywhere.get(name), given.get(name)
            if own != other:
                return (
                    f"All launchers must be given the same {name}. Received: {own!r} on {here}, "
                    f"and {other!r} on {there}"
                )
        return ""


@dataclasses.dataclass(frozen=True)
class FixedTerms(Terms):
    """How the launchers of a job meet in which all machines are needed.

    Attributes:
        machines: how many launchers there are.
        across: makes the variables of all ranks; see `tfdist.strategies.backend.Launch`.
    """

    machines: int
    across: Callable[[Sequence[Machine]], Environments]
