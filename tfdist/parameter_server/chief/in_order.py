"""Results of batches in the order of the data, whichever worker took which batch."""

from __future__ import annotations

from collections.abc import Callable

import keras

from tfdist.parameter_server.chief.keras_function import KerasFunction
from tfdist.parameter_server.chief.scheduler import Scheduler
from tfdist.parameter_server.chief.turns import Limits
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.data.distributed_data import DataIterator
from tfdist.parameter_server.gradients import Outcome
from tfdist.parameter_server.work_item import WorkItem
from tfdist.structures import Structure

# How many batches per worker may be begun before somebody asks for their results.
_AHEAD = 2


class InOrderFunction(KerasFunction):
    """What testing and predicting share.

    Args:
        strategy: the strategy.
        model: the model.
        kind: "test" or "predict".
    """

    def __init__(self, strategy: ChiefStrategy, model: keras.Model, kind: str):
        super().__init__(strategy, model, f"{kind}_step")
        self._kind = kind
        self._of_keras: Callable[[Structure], Structure] | None = None
        self._made_after = 0
        self._done: dict[int, WorkItem] = {}
        self._position = 0

    def in_order(self, iterator: DataIterator) -> Outcome | None:
        """What a worker gave for the next batch of `iterator`; None when there are no more.

        A worker goes on as soon as its own result has arrived, even if the result of an earlier
        batch has not. Only a limited number of batches is begun before their results are asked for.
        """
        if iterator is not self._iterator:
            self._done, self._position = {}, 0
        if iterator is not self._iterator or self.schedule is None:
            most = _AHEAD * self.strategy.num_workers
            limits = Limits(
                may_start=lambda ahead, under_way: under_way + len(self._done) < most,
                budget=None,
                per_item=1,
                first_item=1,
                max_pending=self.strategy.num_workers,
            )
            self.begin(iterator, iterator.source(), limits, on_wait=lambda worker: None)
        while self._position not in self._done:
            item = self.next()
            if item is None:
                self.close()
                return None
            self._done[item.batches[0].position] = item
            self.release(item)
        outcome = self._done.pop(self._position).outcome
        self._position += 1
        assert isinstance(self.schedule, Scheduler)
        self.schedule.ask_again()
        return outcome

    def call_keras(self, data: Structure) -> Structure:
        """Calls Keras' own function, for a single batch that the chief computes by itself."""
        restores = self.strategy.snapshots.restores
        if self._of_keras is None or self._made_after != restores:
            self._made_after = restores
            attribute = f"{self._kind}_function"
            ours = getattr(self.model, attribute)
            getattr(self.model, f"make_{attribute}")(force=True)
            self._of_keras = getattr(self.model, attribute)
            setattr(self.model, attribute, ours)
        return self._of_keras(data)
