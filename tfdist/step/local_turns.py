"""When the replicas of a round meet: with all weights at once, or fragment by fragment."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Protocol

import tensorflow as tf

from tfdist.local.choices import LocalSteps
from tfdist.step.local_meeting import Meeting
from tfdist.step.local_pace import Pace
from tfdist.step.local_state import LocalState
from tfdist.step.local_traced import Trained
from tfdist.step.spans import ending
from tfdist.step.vectors import with_value


class Turns(Protocol):
    """When the replicas meet; all methods run in cross-replica context, in all processes."""

    def end_step(self, strategy: tf.distribute.Strategy, trained: Trained) -> tf.Tensor:
        """Lets the replicas meet after a step, if it is time.

        Returns:
            Whether H updates have passed, so that all else that steps have set becomes equal too.
        """

    def finish(self, strategy: tf.distribute.Strategy, trained: Trained) -> None:
        """Gives all replicas the same weights, after any number of updates."""


class AllAtOnce:
    """All weights meet after H updates.

    Args:
        local: the user's choice.
        state: what the replicas have for themselves.
        meeting: of all weights.
    """

    def __init__(self, local: LocalSteps, state: LocalState, meeting: Meeting):
        self._local = local
        self._state = state
        self._meeting = meeting

    def end_step(self, strategy: tf.distribute.Strategy, trained: Trained) -> tf.Tensor:
        """As in `Turns`."""
        updates = tf.convert_to_tensor(self._state.updates)
        is_due = tf.greater_equal(updates, self._length())
        tf.cond(is_due, lambda: self.finish(strategy, trained), lambda: None)
        return is_due

    def _length(self) -> int | tf.Tensor:
        """After how many updates the replicas meet."""
        return self._local.updates

    def finish(self, strategy: tf.distribute.Strategy, trained: Trained) -> None:
        """As in `Turns`. Nothing happens if no replica has moved."""
        state = self._state
        meet_if_moved(strategy, self._meeting, trained)
        strategy.extended.call_for_each_replica(
            lambda: [c.assign(tf.zeros(c.shape)) for c in (state.samples, state.present)]
        )
        rounds, updates = tf.convert_to_tensor(state.rounds), tf.convert_to_tensor(state.updates)
        state.rounds.assign(rounds + tf.cast(updates > 0, rounds.dtype))
        begin_anew([state.updates, state.steps, state.touched])


class ByTime(AllAtOnce):
    """All weights meet after as many updates as are planned for this round.

    Args:
        local: the user's choice.
        state: what the replicas have for themselves.
        meeting: of all weights.
        pace: plans the rounds.
    """

    def __init__(self, local: LocalSteps, state: LocalState, meeting: Meeting, pace: Pace):
        super().__init__(local, state, meeting)
        self._pace = pace

    def _length(self) -> tf.Tensor:
        return self._pace.updates.read_value()

    def finish(self, strategy: tf.distribute.Strategy, trained: Trained) -> None:
        """As in `Turns`. The replicas also tell each other what they have measured."""
        self._pace.tell(strategy, self._state)
        super().finish(strategy, trained)


class Streamed:
    """Fragments of the weights meet one after the other.

    Args:
        local: the user's choice.
        state: what the replicas have for themselves.
        meetings: one for each fragment.
    """

    def __init__(self, local: LocalSteps, state: LocalState, meetings: Sequence[Meeting]):
        self._local = local
        self._state = state
        self._meetings = list(meetings)

    def end_step(self, strategy: tf.distribute.Strategy, trained: Trained) -> tf.Tensor:
        """As in `Turns`."""
        due = [self._is_due(meeting.number) for meeting in self._meetings]
        for meeting, is_due in zip(self._meetings, due):
            meet = functools.partial(self._meet, strategy, meeting, trained)
            tf.cond(is_due, meet, lambda: None)
        return due[-1]

    def finish(self, strategy: tf.distribute.Strategy, trained: Trained) -> None:
        """As in `Turns`."""
        state = self._state
        for meeting in self._meetings:
            self._meet(strategy, meeting, trained)
        begin_anew([state.updates, state.steps, state.touched, state.round_begun])

    def _is_due(self, number: int) -> tf.Tensor:
        """Whether an update since the fragment's round began is one after which it meets."""
        steps, turn = self._local.updates, self._local.turns[number]
        now, begun = (
            tf.convert_to_tensor(v) for v in (self._state.updates, self._state.round_begun)
        )
        return (now - turn) // steps > (begun[number] - turn) // steps

    def _meet(self, strategy: tf.distribute.Strategy, meeting: Meeting, trained: Trained) -> None:
        """Ends the round of a fragment."""
        otherwise = functools.partial(self._without_moves, strategy, meeting, trained)
        meet_if_moved(strategy, meeting, trained, otherwise)
        strategy.extended.call_for_each_replica(meeting.begin)
        self._end_round(strategy, meeting)

    def _without_moves(
        self, strategy: tf.distribute.Strategy, meeting: Meeting, trained: Trained
    ) -> None:
        """What happens to a fragment where no replica has moved: nothing."""

    def _end_round(self, strategy: tf.distribute.Strategy, meeting: Meeting) -> None:
        """Begins to count anew for a fragment."""
        state, here = self._state, [meeting.number]

        def count_anew() -> None:
            for count in (state.samples, state.present):
                count.assign(with_value(count.read_value(), here, 0))

        strategy.extended.call_for_each_replica(count_anew)
        updates, begun = (tf.convert_to_tensor(v) for v in (state.updates, state.round_begun))
        rounds, touched = (tf.convert_to_tensor(v) for v in (state.rounds, state.touched))
        ended = rounds + tf.cast(updates > begun, rounds.dtype)
        state.rounds.assign(with_value(rounds, here, ended))
        state.round_begun.assign(with_value(begun, here, updates))
        state.touched.assign(with_value(touched, meeting.places, 0))


def meet_if_moved(
    strategy: tf.distribute.Strategy,
    meeting: Meeting,
    trained: Trained,
    otherwise: Callable[[], None] = lambda: None,
) -> None:
    """Gives all replicas the same weights, if one has moved; in cross-replica context.

    Args:
        strategy: the strategy.
        meeting: what the replicas exchange.
        trained: which variables the optimizer trains.
        otherwise: called if no replica has moved.
    """
    run = strategy.extended.call_for_each_replica
    measured = run(lambda: meeting.measure(meeting.now(trained)))
    first = strategy.experimental_local_results(measured)[0]

    def meet(measured: tf.Tensor) -> None:
        meeting.meet(measured, trained)

    with ending(strategy, meeting.exchange_name):
        tf.cond(meeting.has_moved(first), lambda: run(meet, args=(measured,)), otherwise)


def begin_anew(counters: Sequence[tf.Variable]) -> None:
    """Sets counters to zero."""
    for count in counters:
        count.assign(tf.zeros_like(tf.convert_to_tensor(count)))
