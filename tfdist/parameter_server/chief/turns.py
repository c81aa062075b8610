"""Which worker may begin with a work item, and with how many batches."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable


@dataclasses.dataclass(frozen=True)
class Limits:
    """How much work the workers may begin in a run.

    Attributes:
        may_start: whether a worker may begin a work item. The arguments: how many work items more
            than the slowest worker it has finished, and how many of other workers are under way.
        budget: the number of batches in the run; None for all that there are.
        per_item: the number of batches in a work item.
        first_item: the number of batches in the first work item.
        max_pending: the number of work items that may be under way at a time.
        size: how many batches the next work item should have. The arguments: the index of the
            worker, and how many batches are left. None for `first_item` and `per_item`.
    """

    may_start: Callable[[int, int], bool]
    budget: int | None
    per_item: int
    first_item: int
    max_pending: int
    size: Callable[[int, int | None], int] | None = None


class Turns:
    """Counts what workers have begun and finished; called by one thread at a time.

    Args:
        workers: the number of workers.
        limits: how much work the workers may begin.
        lost: the workers that are lost already. The set is kept up to date for the next run.

    Attributes:
        returns: how often batches have come back.
    """

    def __init__(self, workers: int, limits: Limits, lost: set[int]):
        self.returns = 0
        self._limits = limits
        self._left = limits.budget
        self._sizes = itertools.chain([limits.first_item], itertools.repeat(limits.per_item))
        self._under_way = 0
        self._finished = dict.fromkeys(range(workers), 0)
        self._lost = lost
        self._without_data: set[int] = set()
        self._aside: set[int] = set()

    # Questions

    def all_are_lost(self) -> bool:
        """Whether no worker is left."""
        return len(self._lost) == len(self._finished)

    def is_over(self) -> bool:
        """Whether nothing is under way and nothing can come."""
        absent = self._lost | self._without_data | self._aside
        nothing_left = self._left == 0 or len(absent) == len(self._finished)
        return self._under_way == 0 and nothing_left

    def is_something_left_for(self, worker: int) -> bool:
        """Whether there may be batches for a worker."""
        return worker not in self._without_data and self._left != 0

    def may_begin(self, worker: int) -> bool:
        """Whether a worker may take batches now, if there are some."""
        return self._under_way < self._limits.max_pending and self._limits.may_start(
            self._finished[worker] - self._slowest(), self._under_way
        )

    # Events

    def begin(self, worker: int) -> int:
        """Notes that a worker begins. Returns how many batches it may take."""
        self._under_way += 1
        size = self._limits.size
        wanted = next(self._sizes) if size is None else size(worker, self._left)
        if self._left is not None:
            wanted = min(wanted, self._left)
            self._left -= wanted
        return wanted

    def finish(self, worker: int) -> None:
        """Notes that what the worker did was used."""
        self._under_way -= 1
        self._finished[worker] += 1

    def drop(self) -> None:
        """Notes that what a worker began comes to nothing."""
        self._under_way -= 1

    def set_aside(self, worker: int) -> None:
        """Notes that nobody needs what the worker is doing."""
        self._under_way -= 1
        self._aside.add(worker)

    def take_up_again(self, worker: int) -> None:
        """Notes that the end of what was set aside counts as that of anything else."""
        self._under_way += 1
        self._aside.discard(worker)

    def give_back(self, count: int) -> None:
        """Takes back the right to `count` batches."""
        if self._left is not None:
            self._left += count

    def find_no_data(self, worker: int) -> None:
        """Notes that there are no batches for the worker."""
        self._without_data.add(worker)

    def let_all_ask(self) -> None:
        """Lets workers that found no data ask again."""
        self.returns += 1
        self._level(self._without_data)
        self._without_data.clear()

    def lose(self, worker: int) -> None:
        """Notes that a worker is lost."""
        self._lost.add(worker)

    def is_back(self, worker: int) -> bool:
        """Notes that a worker is there. Returns whether it had been lost."""
        if worker not in self._lost:
            return False
        self._level([worker])
        self._lost.discard(worker)
        self._without_data.discard(worker)
        return True

    def _slowest(self) -> int:
        absent = self._lost | self._without_data
        there = [count for worker, count in self._finished.items() if worker not in absent]
        return min(there, default=max(self._finished.values()))

    def _level(self, absent: Iterable[int]) -> None:
        """Lets workers that come back count as level with the slowest worker that is there.

        Otherwise all other workers would have to wait until these workers have caught up.
        """
        slowest = self._slowest()
        for worker in absent:
            self._finished[worker] = max(self._finished[worker], slowest)
