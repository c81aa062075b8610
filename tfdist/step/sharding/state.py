"""The optimizer's state of which each replica has a part, and how it is saved as a whole."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import tensorflow as tf

from tfdist.step.replica_rows import PER_REPLICA, Entry
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.parts import Parts


class PartsOfState(ReplicaState):
    """Variables of which each replica has its part.

    Made in the strategy's scope. A file has whole variables, where the optimizer writes them; the
    methods for Keras' saving write and read nothing themselves.

    Args:
        slots: by the place in the optimizer's list of variables, a variable with the replica's part
            and how the whole is divided.
        updates: returns the optimizer's number of updates.
    """

    def __init__(
        self, slots: Mapping[int, tuple[tf.Variable, Parts]], updates: Callable[[], int]
    ):
        super().__init__(name="parts")
        self._slots = dict(slots)
        self._updates = updates

    @property
    def places(self) -> list[int]:
        """Which of the optimizer's variables are in parts."""
        return list(self._slots)

    @property
    def owned(self) -> list[tf.Variable]:
        """The variables with parts."""
        return [variable for variable, _ in self._slots.values()]

    def entries(self) -> list[Entry]:
        """The parts."""
        return [
            Entry(variable, [(str(place), ..., parts.part_shape)])
            for place, (variable, parts) in self._slots.items()
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
            for place, (_, parts) in self._slots.items():
                yield place, parts.array_of_parts([next(rows) for _ in range(parts.replicas)])
        finally:
            for _ in rows:
                pass  # the other processes iterate over all rows, so this one must too

    def read(self, whole: Callable[[int], np.ndarray]) -> None:
        """Sets the parts.

        Args:
            whole: returns the whole variable of a place.
        """
        last = functools.lru_cache(maxsize=1)(whole)

        def part(key: str, replica: int) -> np.ndarray:
            place = int(key)
            return self._slots[place][1].part_of_array(last(place), replica)

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
