"""Stage 2 in sharded training: each replica accumulates its parts of the summed gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tfdist.step.accumulation import GradientAccumulator
from tfdist.step.replica_rows import PER_REPLICA
from tfdist.step.sharding.parts import Parts
from tfdist.structures import Structure


class AccumulatedParts(GradientAccumulator):
    """Parts of sums over the replicas, saved as whole sums: as an accumulator without parts does.

    Args:
        parts: how each trainable variable is divided.
        *arguments: those of `GradientAccumulator`.
    """

    _takes_rows = False

    def __init__(self, parts: Sequence[Parts], *arguments: Structure):
        super().__init__(*arguments)
        self._parts = list(parts)

    def saved_as(self) -> str:
        """Each replica's parts travel."""
        return PER_REPLICA

    def save_own_variables(self, store: dict) -> None:
        """Writes whole sums, and the number of micro-batches."""
        store["micro_step"] = self.micro_step.numpy()
        if not self.has_rows():
            return
        _, rows = self._rows_to_save()
        try:
            for entry in self.entries():
                of_replicas = [next(rows) for _ in range(self._strategy.num_replicas_in_sync)]
                for key, slot, _ in entry.places:
                    parts = self._parts[int(key)]
                    store[key] = parts.array_of_parts([row[slot] for row in of_replicas])
        finally:
            for _ in rows:
                pass  # the other processes iterate over all rows, so this one must too

    def _adopt_total(self, read: Callable[[str, int], np.ndarray]) -> None:
        def part(key: str, replica: int) -> np.ndarray:
            return self._parts[int(key)].part_of_array(read(key, 0), replica)

        self.adopt(PER_REPLICA, part)
