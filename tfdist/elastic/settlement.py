"""What the ranks of a new group tell each other, so that all are at the same place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.elastic import transfer
from tfdist.elastic.facts import FACTS, facts_of
from tfdist.elastic.following import CannotJoinError
from tfdist.elastic.forming import GroupIsNoMoreError
from tfdist.elastic.handover import Belongings
from tfdist.elastic.operations import Operation
from tfdist.elastic.residuals import Residuals
from tfdist.elastic.state import Made, Snapshot
from tfdist.elastic.windows import Windows
from tfdist.structures import Structure


class Place(NamedTuple):
    """Where a rank is.

    Attributes:
        rank: its place in the group.
        size: the number of ranks.
        completed: how many operations it has completed.
        joining: the ranks that get the state of the others.
    """

    rank: int
    size: int
    completed: int
    joining: list[int]


class Settlement:
    """Brings the ranks of a new group to the same place; all of them call the same methods.

    Args:
        carry: sums a tensor over the ranks.
        place: where this rank is.
        operation: what this rank was about to do.
        made: the variables of all models.
        windows: the accumulated gradients that wait for an update.
        residuals: what each rank keeps for itself.
    """

    def __init__(
        self,
        carry: transfer.Carry,
        place: Place,
        operation: Operation,
        made: Made,
        windows: Windows,
        residuals: Residuals,
    ):
        self._carry = carry
        self._place = place
        self._operation = operation
        self._made = made
        self._windows = windows
        self._residuals = residuals
        counts = self._table([place.completed, windows.made])
        self._count = int(counts[:, 1].max())
        counts[place.joining, 0] = -1
        self._root = int(counts[:, 0].argmax())
        newest = int(counts[:, 0].max())
        self.is_root = place.rank == self._root
        self.is_new = place.rank in place.joining
        self.is_behind = not self.is_new and place.completed < newest
        self.some_are_behind = bool((np.delete(counts[:, 0], place.joining) < newest).any())

    def _table(self, row: list[int]) -> np.ndarray:
        """Every rank's row of integers."""
        rows = np.zeros((self._place.size, len(row)), np.int64)
        rows[self._place.rank] = row
        return self._carry(tf.constant(rows)).numpy()

    def take_in(self, belongings: Belongings) -> None:
        """Gives ranks that join the state of the others, who are all about to do the same step.

        Raises:
            CannotJoinError: in a rank that is about to do something else, or with other data.
            GroupIsNoMoreError: then in the other ranks.
        """
        self._check_joining()
        if self.is_new:
            self._residuals.start_anew()
        for number in range(self._count):
            self._hand_over_window(number)
        self.send_state(self._operation.handed_over(), to_this_rank=self.is_new, joins=True)
        given = belongings.given() if self.is_root else None
        found = transfer.object_of(self._carry, given, is_root=self.is_root)
        if self.is_new:
            belongings.take(found)

    def _check_joining(self) -> None:
        rows = self._table(facts_of(self._operation, self._made, self._windows, self._count))
        found = {rank: self._differences(rows, rank) for rank in self._place.joining}
        if found.get(self._place.rank):
            raise CannotJoinError(
                "This rank was started later and is not where the others are, so it cannot join "
                "them. Its data must be the same, in the same order, each time the script runs: "
                "call `keras.utils.set_random_seed` first, and do not read data that change. "
                f"Received: other {', '.join(found[self._place.rank])} than in rank {self._root}"
            )
        if any(found.values()):
            raise GroupIsNoMoreError

    def _differences(self, rows: np.ndarray, rank: int) -> list[str]:
        """What a rank that joins has otherwise than the others."""
        differ = [name for name, a, b in zip(FACTS, rows[rank], rows[self._root]) if a != b]
        others = np.delete(rows, self._place.joining, axis=0)
        has_targets = bool(rows[self._root, FACTS.index("targets")])
        is_augmented = len(set(others[:, -1].tolist())) > 1 or (len(others) == 1 and has_targets)
        return [] if differ == ["inputs"] and is_augmented else differ

    def _hand_over_window(self, number: int) -> None:
        window = self._windows.get(number)
        totals = window.totals if window is not None and self.is_root else None
        totals = transfer.object_of(self._carry, totals, is_root=self.is_root)
        if totals is None:
            return
        start = window.start if window is not None and self.is_root else None
        variables = self._made.alive() if self.is_new else {}
        leave_out = self._residuals.variables()
        transfer.state_of(self._carry, start, variables, leave_out, is_root=self.is_root)
        if self.is_new and window is not None:
            window.begin_from_now(totals)

    def send_state(
        self, state: Snapshot | None, *, to_this_rank: bool, joins: bool = False
    ) -> None:
        """Gives ranks the state of the one that has completed the most operations.

        Args:
            state: that state; used in that rank only.
            to_this_rank: whether this rank takes it.
            joins: whether ranks that join take it, which have nothing of their own.
        """
        own = self._windows.own() if self.is_root else []
        known = {id(v): n for n, v in self._made.alive().items()}
        leave_out = {known[id(variable)] for variable in own} | self._residuals.variables().keys()
        if not joins:
            leave_out |= self._made.kept_apart().keys()
        variables = self._made.alive() if to_this_rank else {}
        transfer.state_of(self._carry, state, variables, leave_out, is_root=self.is_root)

    def result(self, own: Structure) -> Structure:
        """The result that the last operation has in the rank that has completed the most."""
        return transfer.result_of(self._carry, own, is_root=self.is_root)

    def accumulate_again(self) -> None:
        """Computes accumulated gradients anew, as far as they wait for an update."""
        if not self._count:
            return
        table = self._table(self._windows.lengths(self._count).ravel().tolist())
        table = table.reshape(self._place.size, self._count, 2)
        for number in range(self._count):
            window, (serial, length) = self._windows.get(number), table[self._root, number]
            if window is None:
                continue
            if window.serial != serial:
                window.clear()  # the rank that is ahead has made the update
            elif not length or (table[:, number, 0] == serial).all():
                more = (self._operation.batch,) if len(window.batches) < length else ()
                window.do_again(*more, is_first=self._place.rank == 0)

    def pass_residuals_on(self, members: Sequence[int], leaving: Sequence[int]) -> None:
        """Gives all ranks what those keep for themselves that are about to leave.

        Args:
            members: the numbers of the ranks.
            leaving: those that are about to leave.
        """
        residuals = self._residuals
        pending = residuals.pending(members)
        longest = int(self._table([len(pending)]).max())
        if longest:
            rows = self._table([*pending, *[-1] * (longest - len(pending))])
            residuals.choose_who_adds(
                [[n for n in row if n >= 0] for row in rows.tolist()], self._place.rank
            )
        for number in leaving:
            is_own = members[self._place.rank] == number
            given = {number: residuals.given(), **residuals.inherited} if is_own else {}
            received = {
                giver: dict(transfer.values_of(self._carry, given.get(giver, {}), is_root=is_own))
                for giver in transfer.object_of(self._carry, [*given], is_root=is_own)
            }
            if not is_own:
                residuals.inherited.update(received)
