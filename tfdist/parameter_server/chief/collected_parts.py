"""The parts of a global batch that have arrived, until an update can be made with them."""

from __future__ import annotations

from tfdist.parameter_server.chief.parts_scheduler import PartsScheduler
from tfdist.parameter_server.chief.updates import Updates
from tfdist.parameter_server.contracts import ChiefStrategy, Schedule
from tfdist.parameter_server.data.parts_source import PartsSource
from tfdist.parameter_server.gradients import Outcome
from tfdist.parameter_server.work_item import WorkItem
from tfdist.step.logs import contributions, total


class CollectedParts:
    """Collects the parts of one global batch after the other, in one run.

    Args:
        strategy: the strategy.
        source: hands out the parts.
        schedule: the work items of the run.
    """

    def __init__(self, strategy: ChiefStrategy, source: PartsSource, schedule: Schedule):
        self._strategy = strategy
        self._source = source
        # A record has only what was used.
        self._live = schedule if isinstance(schedule, PartsScheduler) else None
        self._items: list[WorkItem] = []
        # There are always as many parts to add. With another number, TensorFlow would trace a
        # function anew, and a new function waits for all workers, also for one that hangs.
        policies = strategy.policies
        self._most = policies.parts(strategy.num_workers) - policies.drop

    def __len__(self) -> int:
        return len(self._items)

    def accepts(self, item: WorkItem) -> bool:
        """Whether a part is used: no other worker was earlier with it, nor was the update made."""
        if self._live is None:
            return True
        is_first = self._source.accept(item.batches[0], item.worker)
        if is_first and not self._strategy.policies.drop:
            self._count(self._live.abandon(item))
        elif not is_first:
            self._count([item.worker])
        return is_first

    def add(self, item: WorkItem) -> list[WorkItem]:
        """Adds a part that is used.

        Returns:
            All parts for an update in their order; nothing if there are not enough of them yet.
        """
        self._items.append(item)
        if not (item.completes if self._live is None else self._source.is_complete()):
            return []
        if self._live is not None and self._strategy.policies.drop:
            self._count(self._live.abandon(item, whole_batch=True))
        whole, self._items = self._items, []
        return sorted(whole, key=lambda item: item.batches[0].index)

    def _count(self, in_vain: list[int]) -> None:
        """Counts parts that workers compute in vain."""
        for worker in in_vain:
            report = self._strategy.report.worker(worker)
            if self._strategy.policies.drop:
                report.late += 1
            else:
                report.redundant += 1

    def outcome(self, whole: list[WorkItem], updates: Updates) -> Outcome:
        """What the parts for an update amount to."""
        outcomes = [part.outcome for part in whole if part.outcome is not None]
        own = [(of.gradients, of.changes) for of in outcomes]
        logs = None if outcomes[0].logs is None else total([of.logs for of in outcomes])
        if self._strategy.policies.drop:
            factor = _scale_of(whole)
            others = [own[0]] * (self._most - len(own))
            gradients, changes = updates.mean([*own, *others], len(own), factor)
            logs = None if logs is None else contributions(logs, factor)
        else:
            gradients, changes = updates.add(own)
        return Outcome(gradients, changes, outcomes[-1].assigned, logs)

    def advance(self) -> None:
        """Called when the update was made: goes on with the next global batch."""
        dropped = self._source.advance()
        if self._live is not None:
            self._strategy.report.dropped_parts += dropped


def _scale_of(whole: list[WorkItem]) -> float:
    """1 / the share of the samples of a global batch that arrived; 1 if it has no samples."""
    parts = [part.batches[0].part for part in whole]
    arrived = sum(float(part.fraction) for part in parts if part is not None)
    return 1.0 / arrived if arrived else 1.0
