"""How the ranks of an elastic group talk to each other outside of steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import tensorflow as tf

from tfdist.elastic.group import Group
from tfdist.elastic.operations import Sum
from tfdist.engines.processes import PIECE_BYTES, Processes

_Result = TypeVar("_Result")


class LostSourceError(RuntimeError):
    """A rank is lost whose values the others were to take over."""


class _Member(int):
    """The number of a member of the group, which is not its rank."""


class GroupProcesses(Processes):
    """The ranks of the group that there is now.

    Whatever they tell each other is an operation of the group: after a loss it is repeated by those
    who are left.

    Args:
        group: the group.
        carry: sums a tensor over the ranks of the group.
    """

    def __init__(self, group: Group, carry: Callable[[tf.Tensor], tf.Tensor]):
        super().__init__(group.rank, group.size)
        self._group = group
        self._carry = carry
        self._membership: tuple[int, ...] = (*group.members, group.recoveries, group.residuals.lost)
        group.on_change(self._take_place)

    def _take_place(self) -> None:
        self.rank, self.size = self._group.rank, self._group.size

    @property
    def is_alone(self) -> bool:
        """False: one that joins does what the others have done, however many they were."""
        return False

    @property
    def is_following(self) -> bool:
        """Whether this rank was started later, and is on its way to the others."""
        return self._group.is_apart

    @property
    def may_change(self) -> bool:
        """True."""
        return True

    @property
    def steps(self) -> int:
        """How many train steps all have completed, or meetings of local steps."""
        return self._group.steps

    def note_own(self, variable: tf.Variable, first: Callable[[], tf.Tensor]) -> None:
        """Notes a variable of which each process has a value of its own."""
        self._group.residuals.note(variable, first)

    @property
    def aside(self) -> Processes:
        """This object: elastic ranks have nothing that only one of them has."""
        return self

    def sum(self, value: tf.Tensor) -> tf.Tensor:
        """The sum of `value` over the ranks."""
        return self.sum_of(lambda: value)

    def _sum(self, value: tf.Tensor) -> tf.Tensor:
        return self.sum_of(lambda: value)

    def sum_of(self, make: Callable[[], tf.Tensor]) -> tf.Tensor:
        """The sum of what `make` returns in each rank."""
        return self._executed(lambda: self._carry(make()), "sum")

    def _executed(self, act: Callable[[], _Result], kind: str) -> _Result:
        """The result of `act`, which all ranks do together.

        Args:
            act: makes the result.
            kind: of the operation; the same in all ranks.
        """

        def noted() -> tuple[_Result, tuple[int, ...]]:
            group = self._group
            return act(), (*group.members, group.recoveries, group.residuals.lost)

        result, self._membership = self._group.execute(Sum(noted, kind))
        return result

    @property
    def membership(self) -> tuple[int, ...]:
        """The members at the last operation, then how many changes and losses there had been.

        Ranks may learn at different operations that the group has changed. So this is a part of
        the result of an operation.
        """
        return self._membership

    def source(self, rank: int) -> int:
        """The member that had a rank at the last operation."""
        return _Member(self._membership[rank])

    def all_gather(self, row: Sequence[int]) -> np.ndarray:
        """Every rank's `row` of integers."""

        def table() -> tf.Tensor:
            rows = np.zeros((self.size, len(row)), np.int64)
            rows[self.rank] = row
            return tf.constant(rows)

        if not len(row):  # TensorFlow's operation crashes the process
            return np.zeros((self.size, 0), np.int64)
        return self._executed(lambda: self._carry(table()), f"table of {len(row)}").numpy()

    def _broadcast(self, value: np.ndarray, root: int) -> np.ndarray:
        """The array of `root`: a rank at the last operation, or what `source` has returned.

        Raises:
            LostSourceError: in all ranks, when the root is lost before all have its array.
        """
        member = root if isinstance(root, _Member) else self.source(root)
        own = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        received = np.empty_like(own)
        for start in range(0, own.size, PIECE_BYTES):
            piece = own[start : start + PIECE_BYTES]
            received[start : start + piece.size] = self._piece_of(piece, member)
        return received.view(value.dtype).reshape(value.shape)

    def _piece_of(self, data: np.ndarray, member: int) -> np.ndarray:
        def of_member() -> tf.Tensor | None:
            if member not in self._group.members:
                return None
            words = np.zeros(-(-data.size // 4), np.int32)
            if self._group.members[self.rank] == member:
                words.view(np.uint8)[: data.size] = data
            return self._carry(tf.constant(words))

        found = self._executed(of_member, f"broadcast of {data.size} bytes")
        if found is None:
            raise LostSourceError(
                "A rank was lost before the others had all that they were to take over from it. "
                "Start the job again (with keras.callbacks.BackupAndRestore it goes on from its "
                f"last backup). Received: the loss of the process {member}"
            )
        return found.numpy().view(np.uint8)[: data.size]
