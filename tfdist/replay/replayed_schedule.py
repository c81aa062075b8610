"""The work items of a recorded run, done one by one in the main thread."""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.data.batch import Batch
from tfdist.parameter_server.data.parts_source import PartsSource
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.work_item import Compute, Snapshot, WorkItem
from tfdist.replay.events import Used
from tfdist.replay.log import RunLog
from tfdist.replay.sums import checksum_of_batch

# The one worker of the cluster that a replay runs on.
_WORKER = "/job:worker/replica:0/task:0"


class RecordedBatches:
    """Finds batches by their places. Batches that are read too early are kept until asked for.

    Args:
        source: where the batches come from.
    """

    def __init__(self, source: Source):
        self._source = source
        self._early: dict[tuple[int, int, int], Batch] = {}

    def get(self, shard: int, position: int, index: int, checksum: str) -> Batch:
        """One batch, or part of one.

        Args:
            shard: the part of the data.
            position: the place in the shard.
            index: which part of a global batch; 0 for a whole batch.
            checksum: the checksum of the contents.

        Raises:
            ValueError: when there is no such batch, or its contents are not the recorded ones.
        """
        place = shard, position, index
        if isinstance(self._source, PartsSource):  # what is left of earlier ones was dropped
            self._early = {there: b for there, b in self._early.items() if there[1] >= position}
        while place not in self._early:
            batch = self._source.take(shard)
            if batch is None:
                raise ValueError(
                    "A replay needs the data of the recorded run. Received: data that end before "
                    f"batch {position + 1} of part {shard + 1}"
                )
            if batch.position < position and isinstance(self._source, PartsSource):
                self._source.advance()
            self._early[batch.shard, batch.position, batch.index] = batch
        batch = self._early.pop(place)
        batch.checksum = checksum_of_batch(batch.data)
        if batch.checksum != checksum:
            raise ValueError(
                "A replay needs the data of the recorded run, in its order: let "
                "keras.utils.set_random_seed decide about all random numbers in the script. "
                f"Received: another batch {position + 1} of part {shard + 1}"
            )
        return batch


class ReplayedSchedule:
    """A `Schedule` that follows a record.

    Args:
        log: what happened in the run.
        batches: finds the batches of the run.
        compute: does a work item. It is called with a `read` that reads nothing: the item already
            has the recorded values.
        at_end: called at the end of a log that does not say that the run ended.

    Attributes:
        done: the number of entries of the log that have been replayed.
    """

    def __init__(
        self,
        log: RunLog,
        batches: RecordedBatches,
        compute: Compute,
        at_end: Callable[[], None],
    ):
        self.log = log
        self.done = 0
        self._batches = batches
        self._compute = compute
        self._at_end = at_end
        self._waiting: collections.deque[WorkItem] = collections.deque()
        self._values: dict[int, dict[str, tf.Tensor]] = {}
        self._last_use = {used.read: place for place, used in enumerate(log.used)}

    @property
    def expected(self) -> Used:
        """The entry of the log that comes next."""
        return self.log.used[self.done]

    def start(self, coordinator: compat.Coordinator, current: Snapshot) -> None:
        """Keeps the values that the run begins with."""
        del coordinator
        self._keep(current)

    def next(
        self, may_use: Callable[[Sequence[WorkItem]], bool], timeout: float
    ) -> WorkItem | None:
        """Does the next work item; None when there are no more."""
        del may_use, timeout
        if not self._waiting:
            if self.done == len(self.log.used):
                if not self.log.exhausted:
                    self._at_end()
                return None
            self._waiting.extend(self._items_of(self.expected))
        item = self._waiting.popleft()
        item.completes = not self._waiting
        with tf.device(_WORKER), compat.as_worker(item.worker):
            self._compute(item, lambda item: None)
        return item

    def _items_of(self, used: Used) -> list[WorkItem]:
        with tf.device(_WORKER):
            batches = [self._batches.get(*place) for place in used.batches]
        values = self._values[used.read]
        parts = [batches] if batches[0].part is None else [[part] for part in batches]
        for part in parts:
            part[0].number = used.number
        items = [WorkItem(used.worker, part, used.number, used.read, values) for part in parts]
        for place in used.anew or ():
            items[place].anew = True
        return items

    def release(self, item: WorkItem, current: Snapshot) -> None:
        """Keeps the values after an update as long as later work items need them."""
        del item
        self._keep(current)

    def _keep(self, current: Snapshot) -> None:
        version, values = current
        self._values[version] = values
        for other in [v for v in self._values if self._last_use.get(v, -1) < self.done]:
            del self._values[other]

    def close(self) -> None:
        """Does nothing: there is nothing to end."""
