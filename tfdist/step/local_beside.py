"""Fragments that are exchanged while the next steps compute."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.local.choices import LocalSteps
from tfdist.step.local_meeting import Meeting
from tfdist.step.local_overlap import Overlapped
from tfdist.step.local_sent import Sent
from tfdist.step.local_state import LocalState
from tfdist.step.local_traced import Trained
from tfdist.step.local_turns import Streamed
from tfdist.step.spans import ending
from tfdist.step.vectors import with_value


class Beside(Streamed):
    """Fragments meet one after the other: each is sent, and merged some updates later.

    What is exchanged, and what is merged, depends on the number of updates only. When an exchange
    runs makes no difference: `exchange` may be called at any time between these two.

    Args:
        local: the user's choice.
        state: what the replicas have for themselves.
        meetings: one for each fragment.
        sent: what the replicas have sent.
    """

    def __init__(
        self,
        local: LocalSteps,
        state: LocalState,
        meetings: Sequence[Overlapped],
        sent: Sent,
    ):
        super().__init__(local, state, meetings)
        self._overlapped = list(meetings)
        self._sent = sent

    def end_step(self, strategy: tf.distribute.Strategy, trained: Trained) -> tf.Tensor:
        """As in `Turns`."""
        due = [self._is_due(meeting.number) for meeting in self._overlapped]
        late = [
            tf.logical_and(
                self._is_pending(meeting),
                tf.logical_or(is_due, self._waits(meeting) >= self._local.overlap),
            )
            for meeting, is_due in zip(self._overlapped, due)
        ]
        for meeting, is_late, is_due in zip(self._overlapped, late, due):
            merge = functools.partial(
                self._merge, strategy, meeting, trained, self._local.mixing_factor
            )
            tf.cond(is_late, merge, lambda: None)
            send = functools.partial(self._send, strategy, meeting, trained)
            tf.cond(is_due, send, lambda: None)
        return due[-1]

    def finish(self, strategy: tf.distribute.Strategy, trained: Trained) -> None:
        """As in `Turns`. What was sent is merged at once, and then all fragments meet."""
        for meeting in self._overlapped:
            merge = functools.partial(self._merge_early, strategy, meeting, trained)
            tf.cond(self._is_pending(meeting), merge, lambda: None)
        super().finish(strategy, trained)
        self._sent.start_anew()

    def waiting(self) -> tuple[int | None, int]:
        """The number of a fragment that was sent and not exchanged, and when it is merged.

        Called outside of functions.

        Returns:
            The number, None if there is none, and after how many more updates the first of the
            fragments that were sent is merged.
        """
        pending, exchanged, begun = (
            v.numpy() for v in (self._sent.pending, self._sent.exchanged, self._state.round_begun)
        )
        sent = np.flatnonzero(pending)
        waits = [int(number) for number in sent if not exchanged[number]]
        left = self._local.overlap - int(self._state.updates.numpy())
        return (waits[0] if waits else None), min((left + int(begun[n]) for n in sent), default=0)

    def exchange(self, strategy: tf.distribute.Strategy, number: int, trained: Trained) -> None:
        """Exchanges what the replicas have sent of a fragment; in cross-replica context.

        Reads and sets only what belongs to what was sent, and what compressors keep.
        """
        run, sent, here = strategy.extended.call_for_each_replica, self._sent, [number]
        meeting = self._overlapped[number]
        measured = run(lambda: meeting.measure(meeting.sent(trained)))
        first = strategy.experimental_local_results(measured)[0]
        has_moved = meeting.has_moved(first)

        def exchange(measured: tf.Tensor) -> None:
            meeting.exchange(measured, trained)

        with ending(strategy, meeting.exchange_name):
            tf.cond(has_moved, lambda: run(exchange, args=(measured,)), lambda: None)
        moved, done = (tf.convert_to_tensor(v) for v in (sent.has_moved, sent.exchanged))
        sent.has_moved.assign(with_value(moved, here, tf.cast(has_moved, moved.dtype)))
        sent.exchanged.assign(with_value(done, here, 1))

    # --- what happens to one fragment ---------------------------------------------------------

    def _is_pending(self, meeting: Overlapped) -> tf.Tensor:
        return tf.convert_to_tensor(self._sent.pending)[meeting.number] > 0

    def _waits(self, meeting: Overlapped) -> tf.Tensor:
        """How many updates there have been since the fragment was sent."""
        begun = tf.convert_to_tensor(self._state.round_begun)[meeting.number]
        return tf.convert_to_tensor(self._state.updates) - begun

    def _send(
        self, strategy: tf.distribute.Strategy, meeting: Overlapped, trained: Trained
    ) -> None:
        run, sent = strategy.extended.call_for_each_replica, self._sent
        run(meeting.send, args=(trained,))
        before, touched = (tf.convert_to_tensor(s.touched) for s in (sent, self._state))
        sent.touched.assign(with_value(before, meeting.places, touched))
        pending = tf.convert_to_tensor(sent.pending)
        sent.pending.assign(with_value(pending, [meeting.number], 1))
        self._end_round(strategy, meeting)

    def _merge(
        self,
        strategy: tf.distribute.Strategy,
        meeting: Overlapped,
        trained: Trained,
        mixing: float | tf.Tensor,
    ) -> None:
        sent, here = self._sent, [meeting.number]
        done = tf.convert_to_tensor(sent.exchanged)[meeting.number] > 0
        exchange = functools.partial(self.exchange, strategy, meeting.number, trained)
        tf.cond(done, lambda: None, exchange)

        def merge() -> None:
            meeting.merge(mixing, trained)

        def merge_all() -> None:
            strategy.extended.call_for_each_replica(merge)

        has_moved = tf.convert_to_tensor(sent.has_moved)[meeting.number] > 0
        tf.cond(has_moved, merge_all, lambda: None)
        for flags in (sent.pending, sent.exchanged, sent.has_moved):
            flags.assign(with_value(tf.convert_to_tensor(flags), here, 0))

    def _merge_early(
        self, strategy: tf.distribute.Strategy, meeting: Overlapped, trained: Trained
    ) -> None:
        """Merges a fragment now. If no replica has gone on since, there is nothing to be mixed."""
        run = strategy.extended.call_for_each_replica
        measured = run(lambda: meeting.measure(meeting.now(trained)))
        first = strategy.experimental_local_results(measured)[0]
        mixing = tf.where(first[1, 0] > 0, self._local.mixing_factor, 0.0)
        self._merge(strategy, meeting, trained, mixing)

    def _without_moves(
        self, strategy: tf.distribute.Strategy, meeting: Meeting, trained: Trained
    ) -> None:
        """Takes the anchor where replicas differ by what was mixed only."""
        assert isinstance(meeting, Overlapped)
        go_back = functools.partial(meeting.go_back, trained)
        has_sent = tf.convert_to_tensor(self._state.round_begun)[meeting.number] > 0
        run = strategy.extended.call_for_each_replica
        tf.cond(has_sent, lambda: run(go_back), lambda: None)
