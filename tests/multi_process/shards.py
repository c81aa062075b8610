"""Data that the ranks divide themselves: which rows are in whose batches, and in which step."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from tests.multi_process.reference import ROWS, in_batches

_ENDS = {2: (40, ROWS), 3: (31, 57, ROWS)}
_ENDS_WITHOUT_LAST = {2: (ROWS, ROWS), 3: (40, ROWS, ROWS)}


@dataclasses.dataclass(frozen=True)
class Shards:
    """How the rows are divided.

    Attributes:
        sizes: the sizes of the ranks' batches.
        last_has_none: whether the last rank has no data.
        drop_remainder: whether batches have a static size.
        known: whether the data sets know their lengths.
        endless: the ranks that repeat their data without end; `steps` per epoch are trained.
        steps: the number of steps in each of two epochs; None for all data.
    """

    sizes: tuple[int, ...] = (8, 8, 8)
    last_has_none: bool = False
    drop_remainder: bool = False
    known: bool = True
    endless: tuple[int, ...] = ()
    steps: int | None = None

    def rows(self, rank: int, ranks: int) -> np.ndarray:
        """The rows of `rank`."""
        ends = (0, *(_ENDS_WITHOUT_LAST if self.last_has_none else _ENDS)[ranks])
        return np.arange(ends[rank], ends[rank + 1])

    def epochs(self, ranks: int, devices: int) -> list[list[np.ndarray]]:
        """The rows of each step in two epochs: of the next batch of each replica."""
        replicas = [
            self._batches_of_replica(rank, ranks, device, devices)
            for rank in range(ranks)
            for device in range(devices)
        ]
        if self.steps is not None:
            padded = (itertools.chain(b, itertools.repeat(np.array([], int))) for b in replicas)
            both = itertools.islice(zip(*padded), 2 * self.steps)
            steps = [np.concatenate(parts) for parts in both]
            return [steps[: self.steps], steps[self.steps :]]
        none = np.array([], int)
        steps = [
            np.concatenate(parts) for parts in itertools.zip_longest(*replicas, fillvalue=none)
        ]
        return [steps, steps]

    def _batches_of_replica(self, rank: int, ranks: int, device: int, devices: int):
        batches = in_batches(self.rows(rank, ranks), self.sizes[rank])
        if self.drop_remainder:
            batches = [batch for batch in batches if len(batch) == self.sizes[rank]]
        if rank in self.endless:
            batches = itertools.cycle(batches)
        return itertools.islice(batches, device, None, devices)


SHARDS = {
    "known lengths": Shards(),
    "unknown lengths": Shards(known=False),
    "a rank without data": Shards(last_has_none=True),
    "a rank without data, unknown": Shards(last_has_none=True, known=False),
    "other batch sizes": Shards(sizes=(8, 5, 3)),
    "static batch sizes": Shards(drop_remainder=True),
    "static and other batch sizes": Shards(sizes=(8, 5, 3), drop_remainder=True),
    "endless and finite": Shards(endless=(0,), steps=4),
    "endless": Shards(endless=(0, 1, 2), steps=4),
    "endless and unknown": Shards(endless=(1,), known=False, steps=4),
}
# Those that the default suite trains: something of each kind.
FIRST = (
    "known lengths",
    "a rank without data, unknown",
    "static and other batch sizes",
    "endless and finite",
    "endless and unknown",
)
