"""Rounds of local steps in a group: only where the ranks meet, they do something together.

The steps of a round need no group. So a rank that is lost takes along what it has learned since the
ranks have met last, and nothing else: the others meet without it. A rank that joins comes to a
meeting without a step of its own. It gets the state of the others, counts by no sample, and leaves
the meeting with the weights of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdist.elastic import traces
from tfdist.elastic.group import Group
from tfdist.elastic.operations import Step, Sum
from tfdist.step.all_rounds import AllRounds
from tfdist.structures import Structure

_KIND = "meeting of local steps"


class Met(NamedTuple):
    """Who has met, and what they came with.

    Attributes:
        members: the numbers of the ranks.
        samples: for each of them the samples that it had since the last meeting; 0 for a rank that
            joins there.
    """

    members: tuple[int, ...]
    samples: tuple[int, ...]


class _Strategy(Protocol):
    """What is asked of the strategy of the ranks."""

    all_rounds: AllRounds
    group: Group

    def scope(self) -> Any:
        """The strategy's scope."""

    def own_metrics(self, model: keras.Model) -> list[tf.Variable]:
        """The variables of this process in which metrics count this rank's samples."""

    def read_between_steps(self, model: keras.Model) -> Sequence[tf.Variable]:
        """The variables that are read between steps."""


class GroupRounds:
    """Counts the steps of a round, and lets the ranks meet.

    Args:
        strategy: the strategy of the ranks.
        steps: after how many steps the ranks meet.
        total: sums a tensor over the ranks.

    Attributes:
        last: who met at the last meeting; None before the first one.
    """

    def __init__(self, strategy: _Strategy, steps: int, total: Callable[[tf.Tensor], tf.Tensor]):
        self.last: Met | None = None
        self._strategy = strategy
        self._steps = steps
        self._total = total
        self._since = 0  # steps since the last meeting; the same in all ranks
        self._own = 0  # as many of them has this rank made
        self._batch: Structure = None
        self._model: keras.Model | None = None
        self._before: dict[int, np.ndarray] = {}  # what metrics had counted where the round began
        self._traced: tuple[tuple, Callable[[], None]] = ((), lambda: None)

    # --- the steps of a round -----------------------------------------------------------------

    def begin_step(self, model: keras.Model) -> None:
        """Called before each train step of `model`."""
        if not self._since:
            self._model = model
            metrics = self._strategy.own_metrics(model)
            self._before = {id(variable): variable.numpy() for variable in metrics}

    def end_step(self, batch: Structure, *, is_made: bool) -> None:
        """Called after it. The ranks meet, if it is time.

        Args:
            batch: the global batch.
            is_made: whether this rank has made the step; not while it follows the others.
        """
        self._batch = batch
        self._since += 1
        self._own += is_made
        if self._since >= self._steps:
            self.finish()

    def finish(self) -> None:
        """Lets the ranks meet, if there have been steps since they have met; called by all."""
        if not self._since:
            return
        model = self._model
        assert model is not None
        operation = Step(
            self._meet,
            lambda batch: None,
            self._batch,
            self._strategy.group.made,
            _KIND,
            makes_variables=False,
            read=lambda: self._strategy.read_between_steps(model),
            takes_in=True,
        )
        members, samples = self._strategy.group.execute(operation)
        self.last = Met(tuple(members), tuple(samples))
        self._since = self._own = 0
        self._batch = None

    def check_traced(self) -> None:
        """Called when a step is traced, before it runs.

        Raises:
            ValueError: for a step that cannot be one of a round in an elastic job.
        """
        for each in self._strategy.all_rounds.of(None):
            if each.most_updates > 1:
                raise ValueError(
                    "In an elastic job (`tfdist run --min`) with `local` a round has a number of "
                    "steps, so a step must make one update. Start the job without --min, or apply "
                    "all gradients at once. "
                    f"Received: a step that makes {each.most_updates} updates"
                )
            if not each.is_plain:
                raise ValueError(
                    "In an elastic job (`tfdist run --min`) with `local`, gradients cannot be "
                    "accumulated, nor differences compressed. Start the job without --min, or "
                    "leave that out. Received: an optimizer with accumulation_steps or compression"
                )

    # --- metrics ------------------------------------------------------------------------------

    def results(self, model: keras.Model) -> dict:
        """The results of metrics over the samples of all ranks, also within a round; for all."""
        if not self._since:
            return model.get_metrics_result()
        totals = self._strategy.group.execute(Sum(lambda: self._totals(model), "sum of metrics"))
        metrics = self._strategy.own_metrics(model)
        own = [variable.numpy() for variable in metrics]
        _assign(metrics, totals)
        results = model.get_metrics_result()
        _assign(metrics, own)
        return results

    def _totals(self, model: keras.Model) -> list[np.ndarray]:
        """What the metrics have counted in all ranks."""
        metrics = self._strategy.own_metrics(model)
        now = [variable.numpy() for variable in metrics]
        before = [self._before.get(id(v), np.zeros_like(n)) for v, n in zip(metrics, now)]
        # A rank that joins has the numbers of another rank here, which that rank brings itself.
        added = [n - b if self._own else np.zeros_like(b) for n, b in zip(now, before)]
        found = list(before)
        for dtype in dict.fromkeys(value.dtype for value in added):
            places = [place for place, value in enumerate(added) if value.dtype == dtype]
            flat = np.concatenate([added[place].ravel() for place in places])
            sums = self._total(tf.constant(flat)).numpy()
            ends = np.cumsum([added[place].size for place in places])[:-1]
            for place, part in zip(places, np.split(sums, ends)):
                found[place] = before[place] + part.reshape(before[place].shape)
        return found

    # --- the meeting --------------------------------------------------------------------------

    def _meet(self, batch: Structure) -> tuple[list[int], list[int]]:
        """Gives all ranks the same weights and metrics; a part of an operation.

        Returns:
            The numbers of the ranks, and their samples.
        """
        group, model = self._strategy.group, self._model
        assert model is not None
        rounds = self._strategy.all_rounds.under_way()
        if not self._own:
            for each in rounds:
                each.state.begin_without_samples()
        samples = np.zeros(group.size, np.int64)
        samples[group.rank] = max((each.state.samples_present() for each in rounds), default=0)
        found = self._total(tf.constant(samples)).numpy().tolist()
        _assign(self._strategy.own_metrics(model), self._totals(model))
        self._function()()
        return list(group.members), found

    def _function(self) -> Callable[[], None]:
        """A function in which all rounds end that are under way, for the group of now."""
        strategy, generation = self._strategy, self._strategy.group.generation
        rounds = strategy.all_rounds.under_way()
        begun = [each.begun_and_unsettled for each in rounds]
        key = (generation, *map(id, rounds), *begun, *(len(each.trained) for each in rounds))
        if key != self._traced[0]:

            def meeting_of_rounds() -> None:
                with traces.of_generation(generation), strategy.scope():
                    for each, (has_begun, is_unsettled) in zip(rounds, begun):
                        each.bring_together(has_begun, is_unsettled)

            self._traced = (key, tf.function(meeting_of_rounds, autograph=False))
        return self._traced[1]


def _assign(variables: Sequence[tf.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values):
        variable.assign(value)
