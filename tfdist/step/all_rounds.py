"""The rounds of all optimizers of a strategy: models may share layers, so all end together."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import keras

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
