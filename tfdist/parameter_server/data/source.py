"""Where workers get their batches.

A batch is named by its shard and its position in the shard. When a worker is lost before it has
trained on a batch, the batch is given back, and another worker takes it.
"""

from __future__ import annotations

from typing import Protocol

from tfdist.parameter_server.data.batch import Batch


class Source(Protocol):
    """Hands out batches; called by the threads of all workers.

    Attributes:
        on_workers: whether the workers read the data; an error in the data then counts as theirs.
        gives_iterators: whether a batch is an iterator, from which the worker takes the data in the
            same function that computes: each call of a function is a message of its own.
        is_shared: whether a worker may take batches that another one has not taken, also while that
            one is there.
    """

    on_workers: bool
    gives_iterators: bool

    @property
    def is_shared(self) -> bool:
        """As above."""

    def take(self, worker: int) -> Batch | None:
        """The next batch for `worker`; None if none is left. Called under the worker's device."""

    def give_back(self, batch: Batch) -> None:
        """Takes a batch back that was not used."""

    def leave(self, worker: int) -> None:
        """Called when a worker is lost."""

    def close(self) -> None:
        """Called at the end of a run: lets go whoever waits for batches."""


class SourceBase:
    """Defaults for methods that a source need not have."""

    on_workers = False
    gives_iterators = False

    @property
    def is_shared(self) -> bool:
        """All workers are given batches of the same data."""
        return True

    def leave(self, worker: int) -> None:
        """Does nothing: nothing is kept for a worker."""

    def close(self) -> None:
        """Does nothing: nobody waits."""
