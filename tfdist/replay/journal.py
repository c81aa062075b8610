"""What a strategy tells of its training, and who listens: a recorder, a replay, or nobody."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tfdist import environment

if TYPE_CHECKING:
    from tfdist.parameter_server.work_item import Step


class Journal:
    """Listens to nothing, and lets everything happen."""

    @contextlib.contextmanager
    def fit(self, function: Any) -> Iterator[None]:
        """Surrounds a `fit`, whose train function is `function`."""
        del function
        yield

    def steps(
        self, function: Any, kind: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """The steps of a run of training.

        Args:
            function: the train function.
            kind: the class that lets the workers make them, `Steps`.
            *arguments: for `kind`.
            **options: for `kind`.
        """
        del function
        return kind(*arguments, **options)

    def note(self, action: str, steps: Sequence[Step], version: int, factor: float | None) -> None:
        """Called when gradients were used.

        Args:
            action: "update", "kept", "dropped" or "skipped".
            steps: whose gradients they were: one, or for a global batch those of all parts.
            version: the number of updates then.
            factor: what the learning rate was multiplied by; None where nothing was updated.
        """

    def exhausted(self) -> None:
        """Called when a run has no more steps."""


def open_journal(record: str | os.PathLike | None, strategy: Any) -> Journal:
    """The journal of a strategy.

    Args:
        record: the path of the record to be written; None for none. In a replay nothing is written:
            the strategy follows the record that is replayed.
        strategy: the strategy.

    Raises:
        ValueError: in a replay, when the record is of another strategy.
        OSError: when the record cannot be written.
    """
    if record is None:
        return Journal()
    if environment.REPLAY in os.environ:
        from tfdist.replay.replayer import replay

        return replay(os.environ[environment.REPLAY], strategy)
    from tfdist.replay.recorder import Recorder

    return Recorder(os.fspath(record), strategy)
