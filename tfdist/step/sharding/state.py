"""The optimizer's state of which each replica has a part, and how it is saved as a whole."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from tfdist.step.replica_rows import PER_REPLICA, Entry
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.parts import Parts


@dataclasses.dataclass(frozen=True)
class SlotInParts:
    """One of an optimizer's variables, of which each replica has its part.

    Attributes:
        place: in the optimizer's list of variables.
        variable: has the part of each replica.
        parts: how the whole variable is divided.
    """

    place: int
    variable: tf.Variable
    parts: Parts


class _NoCheckpoint(tf.train.experimental.PythonState):
    """Refuses `tf.train.Checkpoint`, which would hold the first replica's parts only."""

    def serialize(self) -> str:
        raise ValueError(
            "With `sharding` a tf.train.Checkpoint would have one replica's parts of the "
            "optimizer's state only. Save with `model.save` or `model.save_weights`, or leave the "
            "optimizer out of the checkpoint. Received: a checkpoint with a sharded optimizer"
        )

    def deserialize(self, string_value: str) -> None:
        """Never called: no checkpoint has it."""


class PartsOfState(ReplicaState):
    """Variables of which each replica has its part.

    Made in the strategy's scope. A file has whole variables, where the optimizer writes them; the
    methods for Keras' saving write and read nothing themselves.

    Args:
        slots: the variables.
        updates: returns the optimizer's number of updates.
    """

    def __init__(self, slots: Sequence[SlotInParts], updates: Callable[[], int]):
        super().__init__(name="parts")
        self._slots = tuple(slots)
        self._updates = updates
        self._no_checkpoint = _NoCheckpoint()

    @property
    def places(self) -> list[int]:
        """Which of the optimizer's variables are in parts."""
        return [slot.place for slot in self._slots]

    @property
    def owned(self) -> list[tf.Variable]:
        """The variables with parts."""
        return [slot.variable for slot in self._slots]

    def entries(self) -> list[Entry]:
        """The parts."""
        return [
            Entry(slot.variable, [(str(slot.place), ..., slot.parts.part_shape)])
            for slot in self._slots
        ]

    def position(self) -> int:
        """The number of updates."""
        return self._updates()

    def arrays(self) -> Iterator[tuple[int, np.ndarray]]:
        """The whole variables by their places. Several processes call this together, to the end."""
        if not self._slots:
            return
        _, rows = self._rows_to_save()
        try:
            for slot in self._slots:
                rows_of_slot = [next(rows) for _ in range(slot.parts.replicas)]
                yield slot.place, slot.parts.array_of_parts(rows_of_slot)
        finally:
            for _ in rows:
                pass  # the other processes iterate over all rows, so this one must too

    def read(self, whole: Callable[[int], np.ndarray]) -> None:
        """Sets the parts.

        Args:
            whole: returns the whole variable of a place.
        """
        last = functools.lru_cache(maxsize=1)(whole)
        parts = {slot.place: slot.parts for slot in self._slots}

        def part(key: str, replica: int) -> np.ndarray:
            return parts[int(key)].part_of_array(last(int(key)), replica)

        self.adopt(PER_REPLICA, part)

    def save_own_variables(self, store: dict) -> None:
        """Writes nothing: the optimizer writes whole variables."""

    def load_own_variables(self, store: dict) -> None:
        """Reads nothing: the optimizer reads whole variables."""

    def start_anew(self) -> None:
        """Sets the parts to zero."""
        for variable in self.owned:
            for own in self._strategy.experimental_local_results(variable):
                own.assign(tf.zeros_like(own))
