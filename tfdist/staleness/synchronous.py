"""Synchronous: no staleness at all."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfdist.arguments import check_bool
from tfdist.staleness.base import StalenessPolicy
from tfdist.validation import check_integer


@dataclasses.dataclass(frozen=True, repr=False)
class Synchronous(StalenessPolicy):
    """The workers compute parts of one global batch, and all parts together make one update.

    Strong consistency: training equals training on one device with the same global batches,
    whichever worker computes which part. Each step waits for its last part. After Valiant, "A
    Bridging Model for Parallel Computation" (CACM 33(8), 1990).

    Two options shorten the wait for a slow worker. The result stays that of one device.

    Args:
        parts_per_worker: a global batch has so many parts for each worker, 1 to 1024. A worker
            takes the next part when it is free, so a slow worker computes fewer of them.
        backup: whether an idle worker also computes a part that another worker has begun, if it is
            likely to be faster, or if the other one is late. The first result counts, and the other
            one is dropped: `strategy.staleness_report().redundant` is their number. The idea of
            backup tasks is from Dean and Ghemawat, "MapReduce" (OSDI 2004), section 3.6.

    Raises:
        ValueError: for options out of range.

    Example:

    >>> from tfdist import staleness
    >>> staleness.Synchronous(parts_per_worker=2, backup=True).synchronous
    True
    """

    synchronous: ClassVar[bool] = True

    parts_per_worker: int = 1
    backup: bool = False

    def __post_init__(self) -> None:
        check_integer("parts_per_worker", self.parts_per_worker, 1, 1024)
        check_bool("backup", self.backup)

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)
        values = ((field, getattr(self, field.name)) for field in fields)
        chosen = (f"{field.name}={value!r}" for field, value in values if value != field.default)
        return f"Synchronous({', '.join(chosen)})"

    def parts(self, workers: int) -> int:
        """`parts_per_worker` for each of them."""
        return self.parts_per_worker * workers
