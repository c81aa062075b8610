"""Synchronous: no staleness at all."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from tfdist.arguments import check_bool
from tfdist.staleness.base import StalenessPolicy
from tfdist.validation import check_integer


@dataclasses.dataclass(frozen=True, repr=False)
class Synchronous(StalenessPolicy):
    """The workers compute parts of one global batch, and the parts together make one update.

    Strong consistency: training equals training on one device with the same global batches,
    whichever worker computes which part. Each step waits for its last part. After Valiant, "A
    Bridging Model for Parallel Computation" (CACM 33(8), 1990).

    Three options shorten the wait for a slow worker. With `parts_per_worker` and `backup` the
    result stays that of one device. With `drop` it does not: a step does not train on the samples
    of the parts that come too late, and which parts these are depends on the timing.

    Args:
        parts_per_worker: a global batch has so many parts for each worker, 1 to 1024. A worker
            takes the next part when it is free, so a slow worker computes fewer of them.
        backup: whether an idle worker also computes a part that another worker has begun, if it is
            likely to be faster, or if the other one is late. The first result counts, and the other
            one is dropped: `strategy.staleness_report().redundant` is their number. The idea of
            backup tasks is from Dean and Ghemawat, "MapReduce" (OSDI 2004), section 3.6.
        drop: k, 0 or more and less than the number of parts. The update is made as soon as all but
            k of the parts with samples have arrived, and at least one. The k slowest parts are
            dropped, in this step and for good: their samples count neither for the gradient nor for
            the metrics, and `strategy.staleness_report().dropped_parts` is their number. The
            gradient is the mean over the samples that arrived, as of a smaller batch. The result is
            NOT that of one device with the same global batches, and differs from run to run. Not
            together with `backup`. After Chen et al., "Revisiting Distributed Synchronous SGD"
            (2016, arXiv:1604.00981), where these are called backup workers.

    Raises:
        ValueError: for options out of range, and for `drop` together with `backup`.

    Example:

    >>> from tfdist import staleness
    >>> staleness.Synchronous(parts_per_worker=2, backup=True).synchronous
    True
    >>> staleness.Synchronous(drop=1)
    Synchronous(drop=1)
    """

    synchronous: ClassVar[bool] = True

    parts_per_worker: int = 1
    backup: bool = False
    drop: int = 0

    def __post_init__(self) -> None:
        check_integer("parts_per_worker", self.parts_per_worker, 1, 1024)
        check_bool("backup", self.backup)
        check_integer("drop", self.drop, 0)
        if self.backup and self.drop:
            raise ValueError(
                "`backup` waits for all parts, so that the result is that of one device. `drop` "
                "does not wait for the slowest parts, and the result is another one. Choose one of "
                f"them. Received: backup=True, drop={self.drop}"
            )

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)
        values = ((field, getattr(self, field.name)) for field in fields)
        chosen = (f"{field.name}={value!r}" for field, value in values if value != field.default)
        return f"Synchronous({', '.join(chosen)})"

    def parts(self, workers: int) -> int:
        """`parts_per_worker` for each of them."""
        return self.parts_per_worker * workers
