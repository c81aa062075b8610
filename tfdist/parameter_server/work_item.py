"""A step of one worker."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdist.parameter_server.data.sources import Batch


@dataclasses.dataclass
class Step:
    """What a worker does between two of its updates.

    Attributes:
        worker: the index of the worker.
        batches: what it trains on.
        number: the number of batches that were begun before in this run.
        version: the number of updates before the values were read; -1 as long as they are not.
        values: what was read.
        result: what the worker sent.
        states: what its compressors keep when the result is used.
        anew: whether they began anew, as what was unsent is lost with a worker.
        held_back: whether others had to be used first, when the result was there.
        released: whether the worker may go on.
    """

    worker: int
    batches: list[Batch]
    number: int
    version: int = -1
    values: Any = None
    result: Any = None
    states: Any = None
    anew: bool = False
    held_back: bool = False
    released: bool = False
