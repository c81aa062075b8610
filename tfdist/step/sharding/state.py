"""The optimizer's state of which each replica has its own, and how it is saved as a whole."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import keras
import numpy as np
import tensorflow as tf

from tfdist.step.replica_rows import PER_REPLICA, Entry
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.owners import Owned
from tfdist.step.sharding.parts import Parts


@dataclasses.dataclass(frozen=True)
class SlotInParts:
    """One of an optimizer's variables, of which each replica has its part, or one replica has all.

    Attributes:
        variable: has the part of each replica.
        parts: how the whole variable is divided, or who owns it.
    """

    variable: keras.Variable
    parts: Parts | Owned


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
        slots: the variables of the optimizer.
        updates: returns the optimizer's number of updates.
    """

    def __init__(self, slots: Sequence[SlotInParts], updates: Callable[[], int]):
        super().__init__(name="parts")
        self._slots = tuple(slots)
        self._updates = updates
        self._no_checkpoint = _NoCheckpoint()

    @property
    def owned(self) -> list[tf.Variable]:
        """The variables with parts."""
        return [slot.variable.value for slot in self._slots]

    def entries(self) -> list[Entry]:
        """The parts."""
        return [
            Entry(
                slot.variable.value,
                [(str(number), ..., slot.parts.part_shape)],
                holders=slot.parts.holders,
            )
            for number, slot in enumerate(self._slots)
        ]

    def checksums(self) -> list[int]:
        """What tells whether what this process has was changed."""
        return self._checksums()

    def position(self) -> int:
        """The number of updates."""
        return self._updates()

    def write(self, variables: Sequence[keras.Variable], store: dict) -> None:
        """Writes whole variables, by their places. Several processes save together.

        Args:
            variables: of the optimizer, of one around it, or of one of several in it.
            store: of Keras' saving.
        """
        places = {id(variable): str(place) for place, variable in enumerate(variables)}
        rows = self._rows_to_save()[1] if self._slots else iter(())
        for slot, array in self.joined(rows):
            place = places.pop(id(slot.variable), None)
            if place is not None:
                store[place] = array
        for variable in variables:
            if id(variable) in places:
                store[places[id(variable)]] = variable.numpy()

    def read(self, variables: Sequence[keras.Variable], store: dict) -> None:
        """Reads what `write` writes, and sets the parts.

        Raises:
            ValueError: before anything is set, when the file has another shape.
        """
        self._check_shapes(variables, store)
        places = {id(variable): str(place) for place, variable in enumerate(variables)}
        keys = [places.pop(id(slot.variable)) for slot in self._slots]

        @functools.lru_cache(maxsize=1)
        def whole(number: int) -> np.ndarray:
            return np.asarray(store[keys[number]][()])

        def part(key: str, replica: int) -> np.ndarray:
            return self._slots[int(key)].parts.part_of_array(whole(int(key)), replica)

        self.adopt(PER_REPLICA, part)
        for variable in variables:
            if id(variable) in places:
                variable.assign(store[places[id(variable)]])

    def _check_shapes(self, variables: Sequence[keras.Variable], store: dict) -> None:
        shapes = {id(slot.variable): slot.parts.shape for slot in self._slots}
        for place, variable in enumerate(variables):
            expected = shapes.get(id(variable), tuple(variable.shape))
            if (found := np.shape(store[str(place)])) != expected:
                raise ValueError(
                    f"The file has another shape of {variable.path}, which is {expected} for the "
                    f"whole variable. Received: {found}"
                )

    def joined(self, rows: Iterator[np.ndarray]) -> Iterator[tuple[SlotInParts, np.ndarray]]:
        """The whole variables, one after the other.

        Args:
            rows: the parts of all replicas, as from `gather`.
        """
        try:
            for slot in self._slots:
                # No name keeps the parts, or they would be in memory beside the next ones.
                yield slot, slot.parts.array_of_parts([next(rows) for _ in slot.parts.holders])
        finally:
            for _ in rows:
                pass  # the other processes iterate over all rows, so this one must too

    def save_own_variables(self, store: dict) -> None:
        """Writes nothing: the optimizer writes whole variables."""

    def load_own_variables(self, store: dict) -> None:
        """Reads nothing: the optimizer reads whole variables."""

    def start_anew(self) -> None:
        """Sets the parts to zero."""
        for entry in self.entries():
            for own in self.held(entry):
                own.assign(tf.zeros_like(own))
