"""Rounds of local steps in a group: only where the ranks meet, they do something together.

The steps of a round need no group. So a rank that is lost takes along what it has learned since the
ranks have met last, and nothing else: the others meet without it. A rank that joins comes to a
meeting without a step of its own. It gets what the last meeting has left, counts by no sample, and
leaves the meeting with the weights of all.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from tfdist.elastic import traces
from tfdist.elastic.group import Group
from tfdist.elastic.local_metrics import RoundMetrics
from tfdist.elastic.operations import Step, Sum
from tfdist.elastic.state import Made, Snapshot
from tfdist.step.all_rounds import AllRounds
from tfdist.step.local_rounds import LocalRounds
from tfdist.step.spans import Spans
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
    spans: Spans | None

    def scope(self) -> Any:
        """The strategy's scope."""

    def own_metrics(self, model: keras.Model) -> list[tf.Variable]:
        """The variables of this process in which metrics count this rank's samples."""

    def set_in_rounds(self) -> Mapping[int, tf.Variable]:
        """What steps of rounds set, and what becomes equal where these end; by number."""

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
        self._metrics = RoundMetrics(strategy.own_metrics, total)
        self._whole = Snapshot({})  # what the steps of the round set, as it was where it began
        self._traced = _Traced()

    # --- the steps of a round -----------------------------------------------------------------

    def begin_step(self, model: keras.Model) -> None:
        """Called before each train step of `model`, when it has been traced."""
        if self._since:
            self._metrics.look()
            return
        self._model = model
        self._metrics.begin(model)
        self._whole = Snapshot(self._strategy.set_in_rounds())

    def end_step(self, batch: Structure, *, is_made: bool) -> None:
        """Called after it. The ranks meet, if it is time.

        Args:
            batch: the global batch.
            is_made: whether this rank has made the step; not while it follows the others.
        """
        self._batch = batch
        self._since += 1
        self._own += is_made
        self._metrics.note_step()
        if self._since >= self._steps:
            self.finish()

    def finish(self) -> None:
        """Lets the ranks meet, if there have been steps since they have met; called by all."""
        model = self._model
        if not self._since or model is None:
            return
        self._metrics.look()
        group, strategy = self._strategy.group, self._strategy
        operation = _Meeting(
            self._meet,
            self._batch,
            group.made,
            lambda: strategy.read_between_steps(model),
            # What a rank has that has joined in this round is whole, whatever it had before.
            lambda: self._whole if self._own else None,
        )
        members, samples, steps = group.execute(operation)
        self.last = Met(tuple(members), tuple(samples))
        if not any(steps) and group.rank == 0:
            tf.get_logger().warning(
                "tfdist: all ranks that have trained since the last meeting of local steps are "
                "lost, so the others go on from what that meeting has left."
            )
        self._since = self._own = 0
        self._batch = self._model = None
        self._whole = Snapshot({})
        self._metrics.end()

    def results(self, model: keras.Model) -> dict:
        """The results of metrics over the samples of all ranks, also within a round; for all."""
        if not self._since:
            return model.get_metrics_result()
        self._metrics.look()
        totals = self._strategy.group.execute(Sum(self._metrics.totals, "sum of metrics"))
        return self._metrics.results(model, totals)

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

    # --- the meeting --------------------------------------------------------------------------

    def _meet(self, batch: Structure) -> tuple[list[int], list[int], list[int]]:
        """Gives all ranks the same weights and metrics; a part of an operation.

        Returns:
            The numbers of the ranks, their samples, and the steps that they have made.
        """
        group = self._strategy.group
        rounds = self._strategy.all_rounds.under_way()
        if not self._own:
            for each in rounds:
                each.state.begin_without_samples()
        samples = max((each.state.samples_present() for each in rounds), default=0)
        counts = np.zeros((2, group.size), np.int64)
        counts[:, group.rank] = samples, self._own
        found = self._total(tf.constant(counts.ravel())).numpy().reshape(counts.shape).tolist()
        self._metrics.set_totals()
        self._function()()
        return list(group.members), *found

    def _function(self) -> Callable[[], None]:
        """A function in which all rounds end that are under way, for the group of now."""
        strategy, generation = self._strategy, self._strategy.group.generation
        rounds = strategy.all_rounds.under_way()
        begun = [each.begun_and_unsettled for each in rounds]
        key = (generation, strategy.spans, *begun, *(len(each.trained) for each in rounds))
        if self._traced.fits(rounds, key):
            return self._traced.function
        # A trace must not keep the optimizers of a model that nobody uses any more.
        known = [weakref.ref(each) for each in rounds]

        def meeting_of_rounds() -> None:
            with traces.of_generation(generation), strategy.scope():
                for reference, (has_begun, is_unsettled) in zip(known, begun):
                    each = reference()
                    assert each is not None
                    each.bring_together(has_begun, is_unsettled)

        function = tf.function(meeting_of_rounds, autograph=False)
        self._traced = _Traced(known, key, function)
        return function


class _Meeting(Step):
    """The end of a round. Ranks that join have no part in it, and get what is whole.

    Args:
        meet: the rank's part of the meeting.
        batch: as for `Step`.
        made: as for `Step`.
        read: as for `Step`.
        whole: returns what the steps of the round have set, as it was where the round began; None
            if this rank has made no step in it.
    """

    def __init__(
        self,
        meet: Callable[[Structure], Structure],
        batch: Structure,
        made: Made,
        read: Callable[[], Sequence[tf.Variable]],
        whole: Callable[[], Snapshot | None],
    ):
        super().__init__(
            meet, _no_trace, batch, made, _KIND, makes_variables=False, read=read, takes_in=True
        )
        self._whole = whole

    def handed_over(self) -> Snapshot:
        """What all ranks have, and what this one has for itself; not what it has learned alone.

        This rank may be lost before the meeting ends. Then what it has learned is lost too.
        """
        found, whole = super().handed_over(), self._whole()
        found.values.update({} if whole is None else whole.values)
        return found


def _no_trace(batch: Structure) -> None:
    """A meeting makes no variables."""


class _Traced(NamedTuple):
    """A function that ends rounds, as it was traced last.

    Attributes:
        rounds: these rounds.
        key: what else it was traced for.
        function: the function.
    """

    rounds: Sequence[weakref.ref[LocalRounds]] = ()
    key: tuple = ()
    function: Callable[[], None] = lambda: None

    def fits(self, rounds: Sequence[LocalRounds], key: tuple) -> bool:
        """Whether it ends `rounds`."""
        known = [reference() for reference in self.rounds]
        are_same = len(known) == len(rounds) and all(a is b for a, b in zip(known, rounds))
        return are_same and key == self.key
