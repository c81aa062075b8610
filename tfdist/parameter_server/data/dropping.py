"""Which parts of a global batch are begun, where an update does not wait for all of them."""

from __future__ import annotations

import math
from collections.abc import Collection

from tfdist.parameter_server.data.durations import Durations


class Dropping(Durations):
    """Tells an idle worker whether to begin a part that nobody has begun.

    A worker begins one part of each global batch in any case. It begins another one only if too few
    others will be in time. Otherwise the update would mostly be made before the worker is done, and
    the worker would come late to the next global batch.

    Args:
        drop: how many parts an update does not wait for.
    """

    def __init__(self, drop: int):
        super().__init__()
        self._drop = drop
        self._there: set[int] = set()

    def wanted(self, parts: int) -> int:
        """How many of the `parts` of a global batch make an update: never none."""
        return max(1, parts - self._drop)

    def begin_batch(self) -> None:
        """Called when the parts of another global batch are handed out."""
        super().begin_batch()
        self._there.clear()

    def begin(self, worker: int, part: int) -> None:
        """Called when a worker begins with a part."""
        super().begin(worker, part)
        self._there.add(worker)

    def delay(self, worker: int, missing: int, under_way: Collection[int]) -> float:
        """In how many seconds an idle worker should ask again; 0 if it should begin a part now.

        Args:
            worker: the worker.
            missing: how many parts are missing for the update.
            under_way: the parts of the present global batch that were begun and not used yet.

        Returns:
            The seconds; infinity to wait until something changes.
        """
        if missing <= 0:
            return math.inf  # the update is about to be made
        if worker not in self._there:
            return 0.0
        patience = sorted(self.patience(worker, part) for part in under_way)
        in_time = [seconds for seconds in patience if seconds > 0]
        # So many of them may become late before too few are left.
        more = len(in_time) - missing
        return 0.0 if more < 0 else in_time[more]
