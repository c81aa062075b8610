"""How stale the gradients were, and what was done about it."""

from __future__ import annotations

import collections
import dataclasses


@dataclasses.dataclass
class WorkerReport:
    """What is known of one worker.

    Attributes:
        histogram: the number of applied gradients by their staleness τ.
        dropped: the number of dropped gradients by their staleness τ.
        waits: how often the worker had to wait: to begin a step, or because other gradients had to
            be applied before its own. With `Synchronous` all workers wait for each other; this does
            not count.
        learning_rate_factors: the sum of the factors that learning rates were multiplied by.
        redundant: how many parts of global batches it computed that another worker had finished
            first; see `tfdist.staleness.Synchronous`.
        late: how many parts of global batches it began but did not finish before the update was
            made without them; see `drop` there.
    """

    histogram: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    dropped: collections.Counter[int] = dataclasses.field(default_factory=collections.Counter)
    waits: int = 0
    learning_rate_factors: float = 0.0
    redundant: int = 0
    late: int = 0


@dataclasses.dataclass
class SnapshotReport:
    """What snapshots have cost.

    Attributes:
        count: the number of snapshots.
        bytes: the bytes of all of them together.
        seconds: the time for which the chief took them; meanwhile it made no updates.
    """

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def since(self, earlier: SnapshotReport) -> SnapshotReport:
        """What was added since an `earlier` copy of this report."""
        return SnapshotReport(
            self.count - earlier.count,
            self.bytes - earlier.bytes,
            self.seconds - earlier.seconds,
        )


@dataclasses.dataclass
class StalenessReport:
    """What `strategy.staleness_report()` answers.

    Attributes:
        workers: the reports of the workers, by index.
        lost_updates: the number of updates that were lost with parameter servers. The histograms
            count them too.
        dropped_parts: the number of parts of global batches that updates were made without; see
            `drop` of `tfdist.staleness.Synchronous`. Some of them no worker has begun.
        snapshots: what snapshots have cost.

    Example:

    >>> from tfdist.parameter_server.report import StalenessReport
    >>> report = StalenessReport()
    >>> report.add(worker=0, staleness=2, factor=0.5)
    >>> report.add(worker=1, staleness=0, factor=1.0)
    >>> report.mean_staleness, report.max_staleness, report.updates, report.drops
    (1.0, 2, 2, 0)
    """

    workers: dict[int, WorkerReport] = dataclasses.field(default_factory=dict)
    lost_updates: int = 0
    dropped_parts: int = 0
    snapshots: SnapshotReport = dataclasses.field(default_factory=SnapshotReport)

    def worker(self, index: int) -> WorkerReport:
        """The report of one worker; a new one if there is none yet."""
        return self.workers.setdefault(index, WorkerReport())

    def add(self, worker: int, staleness: int, factor: float | None) -> None:
        """Notes a gradient.

        Args:
            worker: the index of the worker that computed the gradient.
            staleness: the gradient's τ.
            factor: what the learning rate was multiplied by; None if the gradient was dropped.
        """
        own = self.worker(worker)
        if factor is None:
            own.dropped[staleness] += 1
        else:
            own.histogram[staleness] += 1
            own.learning_rate_factors += factor

    def since(self, earlier: StalenessReport) -> StalenessReport:
        """What was added since an `earlier` copy of this report."""
        new = StalenessReport()
        for index, own in self.workers.items():
            before = earlier.workers.get(index, WorkerReport())
            new.workers[index] = WorkerReport(
                own.histogram - before.histogram,
                own.dropped - before.dropped,
                own.waits - before.waits,
                own.learning_rate_factors - before.learning_rate_factors,
                own.redundant - before.redundant,
                own.late - before.late,
            )
        new.lost_updates = self.lost_updates - earlier.lost_updates
        new.dropped_parts = self.dropped_parts - earlier.dropped_parts
        new.snapshots = self.snapshots.since(earlier.snapshots)
        return new

    @property
    def histogram(self) -> collections.Counter[int]:
        """The number of applied gradients by their staleness."""
        return sum((own.histogram for own in self.workers.values()), collections.Counter())

    @property
    def updates(self) -> int:
        """The number of applied gradients."""
        return self.histogram.total()

    @property
    def drops(self) -> int:
        """The number of gradients that were dropped."""
        return sum(own.dropped.total() for own in self.workers.values())

    @property
    def waits(self) -> int:
        """How often workers had to wait; see `WorkerReport`."""
        return sum(own.waits for own in self.workers.values())

    @property
    def redundant(self) -> int:
        """How many parts of global batches were computed for nothing; see `WorkerReport`."""
        return sum(own.redundant for own in self.workers.values())

    @property
    def late(self) -> int:
        """How many parts of global batches were begun but came too late; see `WorkerReport`."""
        return sum(own.late for own in self.workers.values())

    @property
    def mean_staleness(self) -> float:
        """The mean τ of applied gradients; 0 without any."""
        total = sum(staleness * count for staleness, count in self.histogram.items())
        return total / max(self.updates, 1)

    @property
    def max_staleness(self) -> int:
        """The largest τ of an applied gradient; 0 without any."""
        return max(self.histogram, default=0)

    @property
    def learning_rate_factor(self) -> float:
        """The mean of what learning rates were multiplied by; 1 without any update."""
        total = sum(own.learning_rate_factors for own in self.workers.values())
        return total / self.updates if self.updates else 1.0
