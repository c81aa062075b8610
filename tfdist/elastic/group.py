"""The group that this process is in: it repeats operations in which a rank was lost."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.elastic import transfer
from tfdist.elastic.connection import Connection
from tfdist.elastic.formation import Formation
from tfdist.elastic.link import Link
from tfdist.elastic.operations import Operation
from tfdist.elastic.state import Made, Snapshot
from tfdist.elastic.windows import Windows
from tfdist.structures import Structure

# An operation that fails so often has another cause than lost ranks.
_MOST_ATTEMPTS = 50


class _GroupIsNoMoreError(Exception):
    """A member was lost, or is about to leave."""


class Group:
    """The ranks of an elastic job, from the view of one of them.

    Args:
        link: the connection to the launcher.
        own: the number that the launcher has given to this process.
        connection: connects the processes.

    Attributes:
        rank: this process' place in the group, 0-based.
        size: the number of ranks in the group.
        generation: the number of the group; 0 before the first one.
        members: the numbers of the ranks, by rank.
        windows: the accumulated gradients that wait for an update.
        made: the variables of all models.
        recoveries: how often the group has changed.
    """

    def __init__(self, link: Link, own: int, connection: Connection):
        self.rank, self.size, self.generation = 0, 1, 0
        self.members: list[int] = [own]
        self._link = link
        self._own = own
        self._connection = connection
        self.windows = Windows()
        self.made = Made()
        self.recoveries = 0
        self._watchers: list[Callable[[], None]] = []
        self._busy = False
        self._completed = 0
        self._last: tuple[Any, Snapshot | None] = (None, None)
        # The highest number of a group that is no more; written by the thread that listens.
        self._no_more = 0
        self._forming = threading.Lock()

    def join(self) -> None:
        """Forms the first group with the others. Waits for them."""
        self._link.listen(self._interrupt)
        formation = self._form()
        if formation.leaving:
            self._no_more = self.generation  # they leave before the first operation

    def on_change(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` after each change of the group."""
        self._watchers.append(watcher)

    # --- operations ---------------------------------------------------------------------------

    def execute(self, operation: Operation) -> Any:
        """Does `operation` together with the others, until no rank is lost in it.

        An operation inside of another one is a part of it.

        Returns:
            What `operation` returns.

        Raises:
            SystemExit: when this process was asked to leave; the others have its state then.
        """
        if self._busy:
            return operation.run()
        with self._operating():
            operation.begin()
            for attempt in itertools.count(1):
                try:
                    self._check()
                    return self._note(operation.run(), operation.end())
                except Exception as error:
                    if not self._is_loss(error) or attempt == _MOST_ATTEMPTS:
                        raise
                operation.undo()
                if self._recover(operation):
                    break
            return self._last[0]

    @property
    def is_operating(self) -> bool:
        """Whether an operation is under way."""
        return self._busy

    @contextlib.contextmanager
    def _operating(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _note(self, result: Structure, state: Snapshot | None) -> Structure:
        self._completed += 1
        self._last = (result, state)
        return result

    def _check(self) -> None:
        if self.generation <= self._no_more:
            raise _GroupIsNoMoreError

    def _is_loss(self, error: BaseException | None) -> bool:
        """Whether `error`, or one that it was made from, says that a rank is lost."""
        while error is not None:
            if isinstance(error, _GroupIsNoMoreError):
                return True
            if isinstance(error, Exception) and self._connection.is_loss(error):
                return True
            error = error.__cause__ or error.__context__
        return False

    # --- recovery -----------------------------------------------------------------------------

    def _recover(self, operation: Operation) -> bool:
        """Forms new groups, until there is one in which all have completed the same operations.

        Returns:
            Whether `operation` is completed: by others, whose state and result this rank has now.
        """
        is_completed = False
        for attempt in itertools.count(1):
            formation = self._form()
            try:
                is_completed = self._settle(operation, is_completed)
                if not formation.leaving:
                    return is_completed
                self._link.say("settled", generation=self.generation)
                if self._link.waits_for("settled", self.generation):
                    if self._own in formation.leaving:
                        self._link.say("left")
                        raise SystemExit(0)
            except Exception as error:
                if not self._is_loss(error) or attempt == _MOST_ATTEMPTS:
                    raise
                if not is_completed:
                    operation.undo()
        raise AssertionError  # the loop has no other end

    def _settle(self, operation: Operation, is_completed: bool) -> bool:
        """Gives ranks that have not completed an operation its results, if others have.

        No rank can be more than one operation ahead, because the next one needs all ranks.

        Args:
            operation: the one that this process was about to do.
            is_completed: whether it has been completed by now.

        Returns:
            Whether it is completed.
        """
        self._check()
        carry = self._connection.sum
        own = np.zeros((self.size, 2), np.int64)
        own[self.rank] = self._completed, self.windows.made
        rows = carry(tf.constant(own)).numpy()
        newest = int(rows[:, 0].max())
        root, behind = int(rows[:, 0].argmax()), self._completed < newest
        self._accumulate_again(operation, int(rows[:, 1].max()), root)
        if (rows[:, 0] == newest).all():
            return is_completed
        is_root = self.rank == root
        result, state = self._last
        # What callbacks have changed since then, the ranks that are behind will change themselves.
        self._send_state(state, self.made.alive() if behind else {}, is_root)
        result = transfer.result_of(carry, result, is_root=is_root)
        if not behind:
            return is_completed
        self._note(result, operation.end())
        return True

    def _send_state(
        self, state: Snapshot | None, variables: dict[int, tf.Variable], is_root: bool
    ) -> None:
        """Sets `variables` to what they are in the state of one rank; called by all."""
        own = self.windows.own() if is_root else []
        known = {id(v): n for n, v in self.made.alive().items()}
        leave_out = {known[id(variable)] for variable in own}
        carry = self._connection.sum
        transfer.state_of(carry, state, variables, leave_out, is_root=is_root)

    def _accumulate_again(self, operation: Operation, made: int, root: int) -> None:
        """Computes accumulated gradients anew, as far as they wait for an update in rank `root`.

        Args:
            operation: the one that this process was about to do.
            made: how many models there may be.
            root: a rank that has completed the most operations.
        """
        if not made:
            return
        table = np.zeros((self.size, made, 2), np.int64)
        table[self.rank] = self.windows.lengths(made)
        table = self._connection.sum(tf.constant(table)).numpy()
        for number in range(made):
            window, (serial, length) = self.windows.get(number), table[root, number]
            if window is None:
                continue
            if window.serial != serial:
                window.clear()  # rank `root` has made the update
            elif not length or (table[:, number, 0] == serial).all():
                more = (operation.batch,) if len(window.batches) < length else ()
                window.do_again(*more, is_first=self.rank == 0)

    def _form(self) -> Formation:
        """Forms the next group. Waits until all of its members have formed it."""
        while True:
            if self.generation:
                with self._forming:
                    self._connection.leave()
            address = self._connection.address
            self._link.say("ready", generation=self.generation, address=address)
            formation = self._link.formation()
            with self._forming:
                self.generation = formation.generation
                self.members = list(formation.members)
                self.rank, self.size = self.members.index(self._own), len(self.members)
                self.recoveries = formation.recoveries
                try:
                    self._check()
                    self._connection.form(formation, self._own)
                except Exception as error:
                    if not self._is_loss(error):
                        raise
                    continue
            for watcher in self._watchers:
                watcher()
            self._link.say("formed", generation=self.generation)
            if self._link.waits_for("go", self.generation):
                return formation

    def _interrupt(self, generation: int) -> None:
        """Frees this process from operations of a group that is no more; in another thread."""
        self._no_more = max(self._no_more, generation)
        with self._forming:
            if self.generation == generation:
                self._connection.interrupt()
