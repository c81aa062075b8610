"""The group that this process is in: it repeats operations in which a rank was lost."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.elastic import backup, kept, transfer
from tfdist.elastic.connection import Connection
from tfdist.elastic.following import CannotJoinError, Following
from tfdist.elastic.formation import Formation
from tfdist.elastic.forming import Forming, GroupIsNoMoreError
from tfdist.elastic.handover import Belongings
from tfdist.elastic.journal import Entry, Journal
from tfdist.elastic.link import Link
from tfdist.elastic.operations import Operation
from tfdist.elastic.residuals import Residuals
from tfdist.elastic.settlement import Place, Settlement
from tfdist.elastic.state import Made, Snapshot
from tfdist.elastic.windows import Windows
from tfdist.structures import Structure

# An operation that fails so often has another cause than lost ranks.
_MOST_ATTEMPTS = 50


class Group(Forming):
    """The ranks of an elastic job, from the view of one of them.

    Args:
        link: as for `Forming`.
        own: as for `Forming`.
        connection: as for `Forming`.
        journal: as for `Forming`.
        backup_dir: the folder in which the state is kept if there are too few ranks; "" for none.

    Attributes:
        windows: the accumulated gradients that wait for an update.
        made: the variables of all models.
        residuals: what each rank keeps for itself.
        steps: how many train steps have been completed, of all models, or meetings of local steps.
        belongings: what ranks that join get besides variables.
        backup_dir: as above.
    """

    def __init__(
        self,
        link: Link,
        own: int,
        connection: Connection,
        journal: Journal | None = None,
        backup_dir: str = "",
    ):
        super().__init__(link, own, connection, journal)
        self.windows = Windows()
        self.made = Made()
        self.residuals = Residuals(self.made)
        self.belongings = Belongings()
        self._backup = backup.Backup(self.made, self.windows, self.residuals, self.belongings)
        self.backup_dir = backup_dir
        self._restored: backup.State | None = None  # what this rank gets when it has come to it
        self._following: Following | None = None
        self._busy, self.steps = False, 0
        self._last: tuple[Any, Snapshot | None] = (None, None)
        self._entry: Entry | None = None  # of the same operation
        self._settled: list[Callable[[], None]] = []

    def join(self) -> None:
        """Forms the first group with the others. Waits for them."""
        self._link.listen(self._interrupt)
        formation = self._form()
        if formation.is_apart:
            assert self._journal is not None
            if formation.restores:
                self._restored = backup.read(kept.read_state(self.backup_dir))
            point = None if self._restored is None else self._restored.completed
            path = str(kept.path_in(self.backup_dir))
            self._following = Following(self._link, self._journal, point, path)
            self._stand_at(1, 1)  # it is no rank of the group, and not the first one
        elif formation.leaving:
            self._no_more = self.generation  # they leave before the first operation

    def on_settled(self, watcher: Callable[[], None]) -> None:
        """Calls `watcher` each time that all ranks of a new group are at the same place."""
        self._settled.append(watcher)

    def check_made(self, numbers: Iterable[int]) -> None:
        """Raises CannotJoinError if this rank lacks variables that the others have."""
        missing = set(numbers) - self.made.alive().keys()
        if missing:
            raise CannotJoinError(
                "This rank was started later and has not made the variables that the others have. "
                f"Received: {len(missing)} that are missing"
            )

    @property
    def is_apart(self) -> bool:
        """Whether this rank was started later, and is on its way to the others."""
        return self._following is not None

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
        with self.operating():
            if self._following is not None:
                if (entry := self._following.next(operation)) is not None:
                    return self._pass(operation, entry)
                self._arrive(operation)
            operation.begin()
            for attempt in itertools.count(1):
                try:
                    self._check()
                    if self._link.takes_in and operation.takes_in:
                        raise GroupIsNoMoreError
                    return self._note(operation, self._run(operation), operation.end())
                except Exception as error:
                    if not self._is_loss(error) or attempt == _MOST_ATTEMPTS:
                        self._cannot_be_followed(error)
                        raise
                self._undo(operation)
                if self._recover(operation):
                    break
            return self._last[0]

    def _run(self, operation: Operation) -> Any:
        self.residuals.begin()
        result = operation.run()
        if operation.takes_in and self.residuals.were_noted:
            # Nobody completes the operation before all have what only they know after it.
            self.residuals.note_own_part()
            self._connection.sum(tf.zeros([1]))
        return result

    def _undo(self, operation: Operation) -> None:
        operation.undo()
        self.residuals.undo()

    def _pass(self, operation: Operation, entry: Entry) -> Structure:
        """Gets past `operation` with what it has come to in the others."""
        self.steps += operation.takes_in
        if operation.makes_variables:
            with self.alone():
                operation.make_variables()
        self._stand_at(entry.size, entry.size)
        variables = self.made.alive()
        for number, value in entry.values.items():
            if number in variables:
                variables[number].assign(value)
        self.windows.add(operation.window, operation.batch)
        return transfer.received(entry.result)

    def _arrive(self, operation: Operation) -> None:
        """Joins the others, who wait before `operation`."""
        assert self._following is not None
        self._completed = self._following.count
        if self._restored is not None:
            self._backup.restore(self._restored, operation)
            self.residuals.start_anew()
            if self._own == 0:
                self.residuals.say("what compression had left unsent is not kept, and is lost")
            self._restored = self._following = None
            if self._journal is not None:
                self._journal.keep(self._completed, None)
        operation.begin()
        self._recover(operation)

    def _cannot_be_followed(self, error: Exception) -> None:
        if self._journal is not None:
            self._journal.end(f"an operation failed with {type(error).__name__}: {error}")

    @property
    def is_operating(self) -> bool:
        """Whether an operation is under way."""
        return self._busy

    @contextlib.contextmanager
    def operating(self) -> Iterator[None]:
        """In this context this rank does what Keras asks for, and no loop of the user's own."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _note(self, operation: Operation, result: Structure, state: Snapshot | None) -> Structure:
        self._completed += 1
        self.steps += operation.takes_in
        self.windows.add(operation.window, operation.batch)
        self.residuals.complete()
        self._last, self._entry = (result, state), None
        if self._journal is not None:
            sent = transfer.without_tensors(result)
            self._entry = Entry(operation.kind, sent, operation.kept(), self.size)
            self._write_down()
        return result

    def _write_down(self) -> None:
        """Writes what the last operation has come to, if this rank writes."""
        if self._journal is not None and self._writes:
            self._journal.keep(self._completed, self._entry)

    # --- recovery -----------------------------------------------------------------------------

    def _recover(self, operation: Operation) -> bool:
        """Forms new groups, until there is one in which all have completed the same operations.

        Returns:
            Whether `operation` is completed: by others, whose state and result this rank has now.
        """
        before = self._completed
        for attempt in itertools.count(1):
            takes_in = operation.takes_in and self._completed == before
            formation = self._form(takes_in, functools.partial(self._save, operation))
            try:
                self._settle(operation, formation)
                if not formation.leaving:
                    return self._completed > before
                self._link.say("settled", generation=self.generation)
                if self._link.waits_for("settled", self.generation):
                    if self._own in formation.leaving:
                        self._link.say("left")
                        raise SystemExit(0)
            except Exception as error:
                if not self._is_loss(error) or attempt == _MOST_ATTEMPTS:
                    raise
                if self._completed == before:
                    self._undo(operation)
        raise AssertionError  # the loop has no other end

    def _save(self, operation: Operation) -> None:
        """Keeps the state of this rank, which waits before `operation`."""
        if not self.backup_dir:
            raise ValueError("the launcher of this rank was given no --backup-dir")
        assert self._journal is not None
        why = self._journal.why_ended()
        if why or not self._journal.has(self._completed):
            raise LookupError(why or "this rank has not written down all results")
        state = self._backup.state(self._completed, operation)
        kept.write(self.backup_dir, state, self._journal.path)

    def _take_in(self, settlement: Settlement) -> None:
        """Gives ranks that join the state of the others."""
        try:
            settlement.take_in(self.belongings)
        except CannotJoinError:
            self._link.say("left")  # so that nobody waits for the end of this process
            raise

    def _settle(self, operation: Operation, formation: Formation) -> None:
        """Gives ranks that have not completed an operation its results, if others have.

        No rank can be more than one operation ahead, because the next one needs all ranks. Ranks
        that join get the state of the others.

        Args:
            operation: the one that this process was about to do.
            formation: the group.
        """
        self._check()
        joining = [formation.rank_of(number) for number in formation.joining]
        place = Place(self.rank, self.size, self._completed, joining)
        settlement = Settlement(
            self._connection.sum, place, operation, self.made, self.windows, self.residuals
        )
        if joining:
            self._take_in(settlement)
        settlement.accumulate_again()
        if settlement.is_new:
            operation.begin()  # from here on, it is undone to the state that the others have
            self._following = None
            self._link.say("joined")
        if settlement.some_are_behind:
            # What callbacks have changed since then, those that are behind change themselves.
            settlement.send_state(self._last[1], to_this_rank=settlement.is_behind)
            result = settlement.result(self._last[0])
            if settlement.is_behind:
                self.residuals.catch_up()
                self._note(operation, result, operation.end())
        self._write_down()
        settlement.pass_residuals_on(self.members, formation.leaving)
        self.residuals.note_lost(formation.lost, says=self.rank == 0)
        for watcher in self._settled:
            watcher()
