"""What all ranks have measured, brought to all of them: once in an epoch, in one small message."""

from __future__ import annotations

from tfdist.engines.processes import Processes
from tfdist.watch.numbers import RankNumbers

_LENGTH = 1024  # equal everywhere, as a rank that joins does not know how long other texts are


def gathered(processes: Processes, own: RankNumbers) -> list[RankNumbers | None]:
    """The numbers of all ranks, the same in all of them; None for a rank that has just joined.

    Args:
        processes: the ranks; all of them call this.
        own: what this rank has measured.
    """
    texts = processes.all_gather_texts(own.text().ljust(_LENGTH))
    return [RankNumbers.of_text(text) for text in texts]
