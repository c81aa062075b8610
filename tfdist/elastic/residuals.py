"""What each rank keeps for itself from step to step, such as the residuals of compression."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfdist.elastic.state import Made, Snapshot

Values = Mapping[int, np.ndarray]
"""Values of variables, by the number of the variable."""


class Residuals:
    """Variables of which each rank has values of its own, and of which only the sum matters.

    A rank that was asked to leave hands its values over, and all that stay keep them. In the next
    operation the first of these ranks adds them to its own. The others drop them when the operation
    is completed. So nothing is lost or counted twice, whatever fails on the way.

    Args:
        made: the variables of all models.

    Attributes:
        inherited: the values that ranks have handed over, by the number of the rank.
        lost: how many ranks were lost so far that had no time to hand anything over.
        were_noted: whether there have ever been such variables; the same in all ranks, which may
            forget variables at different times.
    """

    def __init__(self, made: Made):
        self.inherited: dict[int, Values] = {}
        self.lost = 0
        self._made = made
        self._first: dict[int, Callable[[], tf.Tensor]] = {}
        self.were_noted = False
        self._adds: list[int] = []  # the ranks whose values this rank adds to its own
        self._before: Snapshot | None = None
        self._after: Snapshot | None = None

    def note(self, variable: tf.Variable, first: Callable[[], tf.Tensor]) -> None:
        """Notes one of these variables.

        Args:
            variable: of this process, noted in `made`.
            first: makes the value that it has before training.
        """
        alive = self._made.alive()
        self._first = {n: known for n, known in self._first.items() if n in alive}
        (number,) = [n for n, known in alive.items() if known is variable]
        self._first[number] = first
        self.were_noted = True

    def variables(self) -> dict[int, tf.Variable]:
        """These variables, by number, as far as they are still used."""
        if not self._first:
            return {}
        return {n: v for n, v in self._made.alive().items() if n in self._first}

    def start_anew(self) -> None:
        """Gives the variables the values from before training."""
        for number, variable in self.variables().items():
            variable.assign(self._first[number]())

    def note_lost(self, lost: int, *, says: bool) -> None:
        """Notes how many ranks were lost so far.

        Args:
            lost: the number.
            says: whether this rank tells the user.
        """
        before, self.lost = self.lost, lost
        if says and lost > before:
            self.say(f"what compression had left unsent in {lost - before} rank(s) is lost")

    def say(self, what: str) -> None:
        """Tells the user what has come of these variables, if there have been any."""
        if self.were_noted:
            tf.get_logger().warning("tfdist: %s.", what)

    # --- what others hand over ----------------------------------------------------------------

    def given(self) -> Values:
        """The values that this rank would hand over."""
        return {number: variable.numpy() for number, variable in self.variables().items()}

    def pending(self, members: Sequence[int]) -> list[int]:
        """The ranks that have handed something over and are gone.

        Args:
            members: the numbers of the ranks that are there.
        """
        return sorted(set(self.inherited) - set(members))

    def choose_who_adds(self, held: Sequence[Sequence[int]], rank: int) -> None:
        """Decides which rank adds what to its own values in the next operation; called by all.

        Args:
            held: what `pending` has returned in each rank.
            rank: this rank.
        """
        gone = {number for numbers in held for number in numbers}
        firsts = {number: [number in numbers for numbers in held].index(True) for number in gone}
        self._adds = [number for number, first in firsts.items() if first == rank]

    # --- operations ---------------------------------------------------------------------------

    def begin(self) -> None:
        """Called before an operation is tried."""
        self._after = self._before = None
        if self._adds:
            self._before = Snapshot(self.variables())
            self._add()

    def _add(self) -> None:
        variables = self.variables()
        for number in self._adds:
            for place, value in self.inherited[number].items():
                if place in variables:
                    variables[place].assign_add(value)

    def note_own_part(self) -> None:
        """Called once this rank has done its part: others may have completed the operation."""
        self._after = Snapshot(self.variables())

    def undo(self) -> None:
        """Takes back what `begin` has added."""
        if self._before is not None:
            self._before.restore()

    def complete(self) -> None:
        """Called when the operation is completed in this rank."""
        self.inherited.clear()
        self._adds.clear()
        self._after = self._before = None

    def catch_up(self) -> None:
        """Called when others have completed the operation, and this rank has undone it."""
        if self._after is not None:
            self._after.restore()
        else:
            self._add()
