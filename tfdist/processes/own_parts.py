"""What callbacks do to parts of weights and of optimizers, which no other process can take over."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.saved_weights import PartsOfWeights
from tfdist.step.sharding.state import PartsOfState


class OwnParts:
    """Watches what this process has parts of, in sharded training.

    Args:
        states: returns the state that each replica has for itself.
    """

    def __init__(self, states: Callable[[], list[ReplicaState]]):
        self._states = states
        self._before: dict[int, list[int]] = {}

    def note(self) -> None:
        """Notes the parts as they are."""
        self._before = self._found()

    def have_changed(self) -> bool:
        """Whether parts were changed since `note`, and not by a file that is yet to be shared."""
        return any(self._before.get(state, own) != own for state, own in self._found().items())

    def _found(self) -> dict[int, list[int]]:
        """By state, checksums of an optimizer's parts; of weights how often they were set.

        A step changes weights too, but not in this way.
        """
        found = {}
        for state in self._states():
            if isinstance(state, PartsOfWeights):
                found[id(state)] = [state.times_set()]
            elif isinstance(state, PartsOfState) and not state.is_new:
                found[id(state)] = state.checksums()
        return found


def check_changes(changes: Sequence[int]) -> None:
    """Raises RuntimeError if a callback changed the parts of some processes only.

    Args:
        changes: by rank, whether its parts were changed.
    """
    if any(changes) and not all(changes):
        raise RuntimeError(
            "A callback has changed the optimizer's state, or weights, in some ranks only. With "
            "`sharding` each rank has a part, so the others cannot take it over. Change it in all "
            f"ranks. Received by rank, whether it has changed: {list(map(bool, changes))}"
        )
