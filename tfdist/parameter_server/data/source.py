"""Where workers get their batches.

A batch is named by its shard and its position in it, and can be given back, when a worker is lost
before it has trained on it: another one takes it then.
"""

from __future__ import annotations

from typing import Protocol

from tfdist.parameter_server.data.batch import Batch


class Source(Protocol):
    """Hands out batches; called by the threads of all workers.

    Attributes:
        on_workers: whether they read the data, so that an error in it is one of theirs.
    """

    on_workers: bool

    def take(self, worker: int) -> Batch | None:
        """The next batch for `worker`, under whose device it is called; None for none left."""

    def give_back(self, batch: Batch) -> None:
        """Takes a batch back that was not used."""

    def leave(self, worker: int) -> None:
        """Called when a worker is lost."""

    def close(self) -> None:
        """Called at the end of a run: nobody waits for batches any longer."""


class SourceBase:
    """What sources need not do."""

    on_workers = False

    def leave(self, worker: int) -> None:
        """Nothing is kept for a worker."""

    def close(self) -> None:
        """Nobody waits."""
