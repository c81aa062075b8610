"""Who listens to the training of a strategy: a recorder, a replay, or nobody."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from tfdist import environment
from tfdist.parameter_server.contracts import ChiefStrategy, Journal, Schedule, Training
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.work_item import Compute, WorkItem
from tfdist.replay.events import Header
from tfdist.replay.log import read_header


class NoJournal:
    """Listens to nothing and changes nothing; see `Journal`."""

    reads_batches = False
    follows_record = False

    def fit(self, training: Training) -> contextlib.AbstractContextManager[None]:
        """Nothing happens."""
        del training
        return contextlib.nullcontext()

    def schedule(
        self,
        training: Training,
        source: Source,
        compute: Compute,
        make: Callable[[Compute], Schedule],
    ) -> Schedule:
        """The workers decide."""
        del training, source
        return make(compute)

    def note(
        self, action: str, items: Sequence[WorkItem], version: int, factor: float | None
    ) -> None:
        """Nothing happens."""

    def exhausted(self) -> None:
        """Nothing happens."""


def recorded_cluster() -> Header | None:
    """In a replay, what the record says about the cluster of the recorded run; else None.

    Raises:
        ValueError: when the file is no record, or a record of another format.
        OSError: when the file cannot be read.
    """
    if environment.REPLAY not in os.environ:
        return None
    return read_header(os.environ[environment.REPLAY])


def open_journal(record: str | os.PathLike | None, strategy: ChiefStrategy) -> Journal:
    """The journal of a strategy.

    Args:
        record: the path of the record to be written; None for no record. In a replay nothing is
            written: the strategy follows the record that is replayed.
        strategy: the strategy.

    Raises:
        ValueError: in a replay, when the record is of another strategy.
        OSError: when the record cannot be written.
    """
    if record is None:
        return NoJournal()
    if environment.REPLAY in os.environ:
        from tfdist.replay.replayer import replay

        return replay(os.environ[environment.REPLAY], strategy)
    from tfdist.replay.recorder import Recorder

    return Recorder(os.fspath(record), strategy)
