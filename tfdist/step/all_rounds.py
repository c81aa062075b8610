"""The rounds of all optimizers of a strategy: models may share layers, so all end together."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.step.local_exchanging import Exchanging
from tfdist.step.local_pace import Pace
from tfdist.step.local_rounds import LocalRounds


class AllRounds:
    """Finds the rounds that are under way.

    Until a round has ended, replicas have different weights, even if nobody uses the optimizer of
    this round any more. So rounds are kept until all have ended.

    Args:
        pace: plans rounds that last a time; None for rounds of a number of updates.

    Attributes:
        exchanging: what is exchanged beside the steps.
        meets_in_steps: whether rounds end in steps; else somebody ends them between two steps.
        pace: as above.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace
        self._made: list[weakref.ref[LocalRounds]] = []
        self._held: list[LocalRounds] = []
        self.exchanging = Exchanging()
        self.meets_in_steps = True

    def add(self, rounds: LocalRounds) -> None:
        """Called for each optimizer, in the same order in all processes."""
        self._made = [made for made in self._made if made() is not None]
        self._made.append(weakref.ref(rounds))

    def hold(self, rounds: LocalRounds) -> None:
        """Keeps `rounds`, in which replicas now train."""
        if not any(held is rounds for held in self._held):
            self._held.append(rounds)

    def of(self, variables: Sequence[keras.Variable] | None) -> list[LocalRounds]:
        """The rounds of the optimizers that were built for any of `variables`; None for all."""
        ids = {id(variable) for variable in variables or ()}
        return [
            rounds
            for rounds in self._existing()
            if variables is None or any(id(v) in ids for v in rounds.variables)
        ]

    def trained(self) -> set[int]:
        """Ids of the variables that an optimizer trains."""
        return set().union(*(rounds.trained for rounds in self._existing()))

    def note_trained(self) -> None:
        """Called after an eager step: see `LocalRounds.note_trained_by_any`."""
        trained = self.trained()
        for rounds in self._existing():
            rounds.note_trained_by_any(trained)

    def check_shared(self, rounds: Sequence[LocalRounds], in_loop: bool) -> None:
        """Checks that no two optimizers make outer steps with the same weights.

        Steps of several functions may follow each other in any order. So in loops of a user's own
        it is not known whether a round begins in the middle of another one. `fit` ends all rounds
        before its steps.

        Args:
            rounds: those of the optimizers that a step applies.
            in_loop: whether it is a step of a user's own loop.

        Raises:
            ValueError: for weights that two optimizers train.
        """
        for number, own in enumerate(rounds):
            shared = [path for other in rounds[:number] for path in _shared(own, other)]
            if shared:
                raise ValueError(
                    "Two optimizers of one step train the same weights, so it is not clear which "
                    "of them has moved the weights in a round. Give each weight to one optimizer, "
                    f"or use `LocalSGD` without compression. Received: {shared}"
                )
        shared = self._shared_with_others(rounds, in_loop)
        if shared:
            raise ValueError(
                "Two optimizers train the same weights in different steps, so a round of one of "
                "them may begin in the middle of a round of the other. Give each weight to one "
                "optimizer, use one optimizer in all steps, or `LocalSGD` without compression. If "
                "you need one of them no longer, call `optimizer.finish_round()`, delete it and "
                f"the functions of its steps, and call `gc.collect()`. Received: {shared}"
            )
        for own in rounds:
            own.in_loops |= in_loop

    def _shared_with_others(self, rounds: Sequence[LocalRounds], in_loop: bool) -> list[str]:
        """The weights of which rounds of other steps may be under way."""
        found = []
        for other in self._existing():
            if any(other is own for own in rounds):
                continue
            shared = [path for own in rounds for path in _shared(own, other)]
            if shared and ((in_loop and other.in_loops) or _is_under_way(other)):
                found += shared
        return found

    def under_way(self) -> list[LocalRounds]:
        """The rounds of which replicas have different values."""
        return [rounds for rounds in self._existing() if any(rounds.under_way)]

    def finish(self) -> None:
        """Ends all rounds; in all processes."""
        for rounds in self.under_way():
            self.exchanging.wait(rounds)
            rounds.finish()
        self.release()

    def release(self) -> None:
        """Called when all rounds have ended: nobody needs them any more."""
        self._held.clear()

    def _existing(self) -> list[LocalRounds]:
        return [rounds for made in self._made if (rounds := made()) is not None]


def _shared(one: LocalRounds, other: LocalRounds) -> list[str]:
    """The weights that both train, if one of them makes outer steps."""
    if not (one.sends_differences or other.sends_differences):
        return []
    return [v.path for v in one.variables if id(v) in one.trained & other.trained]


def _is_under_way(rounds: LocalRounds) -> bool:
    with tf.init_scope():  # steps may be traced
        return any(rounds.under_way)
