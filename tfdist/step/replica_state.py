"""State that each replica has for itself: saved with the model, and given back to the replica."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tfdist.engines.processes import Processes
from tfdist.step.replica_rows import NOTHING, PER_REPLICA, SUM, no_row
from tfdist.step.replica_values import ReplicaValues
from tfdist.step.spool import Spool

_KINDS = (PER_REPLICA, SUM, NOTHING)
_UNCHANGED = -1


def _read_nothing(key: str, replica: int) -> np.ndarray:
    raise KeyError(key)


@dataclasses.dataclass
class _Copy:
    """A copy of the state of all replicas at some time. Only the first process has the rows.

    Attributes:
        kind: how the copy holds the rows, such as `PER_REPLICA`.
        rows: the rows, ordered by entry, then by replica; None in the other processes.
        of: the checksums of this process' own state at that time.
    """

    kind: str
    rows: Spool | None
    of: list[int]


class ReplicaState(ReplicaValues):
    """State that consists of one part per replica.

    A file has each replica's part, so that training goes on as if it had not been interrupted. If
    the file is read with another number of replicas, the sum over the replicas is divided equally.

    With several processes only the first writes. The others send their rows to it one at a time, so
    no process ever holds more than one variable of another process in memory.

    Args:
        name: the module's name.

    Attributes:
        announce: while the processes save together, the first process calls this before it asks
            the others for their rows; None otherwise.
        ask: while the first process may save alone, and has no copy of the rows yet, it calls this;
            then all processes must call `copy_rows`. None otherwise.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self._copy: _Copy | None = None
        self._held = False
        self._held_at: Any = None
        self._read = False
        self._began_with: list[int] = []
        self.announce: Callable[[], Any] | None = None
        self.ask: Callable[[], Any] | None = None

    # --- for several processes ----------------------------------------------------------------

    @property
    def is_new(self) -> bool:
        """Whether this process has read a file that the other processes may not have read."""
        return self._read and self._copy is not None and self._copy.of == self._checksums()

    @property
    def is_held(self) -> bool:
        """Whether the first process can save without the others; the same in all processes."""
        during_callbacks = getattr(self._strategy, "callbacks_run", False)
        return self._held and (during_callbacks or self._held_at == self.position())

    @property
    def can_be_saved_alone(self) -> bool:
        """Whether a process can save all that is saved of this state without the others."""
        return not self.has_rows()

    def hold(self, ask: Callable[[], Any] | None = None) -> None:
        """Lets the first process save alone until `release`; called by all between steps.

        Args:
            ask: see the attributes. None if all processes are to copy the rows at once.
        """
        if not self.several_processes:
            return
        if self._read:
            self._copy = None
        self._held, self._held_at, self._read = True, self.position(), False
        self.ask, self._began_with = ask, self._checksums() if self.has_rows() else []
        if ask is None and self.has_rows():
            self.copy_rows(self._processes)

    def release(self) -> None:
        """Ends what `hold` began; called by all processes."""
        self._held, self.ask = False, None

    def copy_rows(self, processes: Processes) -> None:
        """Gives the first process a copy of what all replicas had when `hold` was called.

        Called by all processes. A copy that is still right is not made again.

        Args:
            processes: what carries the rows.

        Raises:
            RuntimeError: in the first process, when the state of another has changed since then.
            OSError: in the first process, when there is no room for the copy.
        """
        copy = self._copy
        same = copy is not None and copy.of == self._began_with
        if copy is not None and copy.rows is None and processes.is_chief:
            same = False  # another process was the first one when the copy was made
        # All must agree: this process' state may be unchanged while another's has changed.
        if processes.all_gather([int(same)]).all():
            return
        rows = Spool() if processes.is_chief else None
        gathered = self.gather(processes)
        try:
            for row in gathered:
                if rows is not None:
                    rows.append(row)
        finally:
            for _ in gathered:
                pass  # the other processes iterate over all rows, so this one must too
            unchanged = self._checksums() == self._began_with
            answers = processes.all_gather([int(unchanged)])[:, 0]
        if processes.is_chief and not answers.all():
            ranks = ", ".join(f"rank {rank}" for rank in np.flatnonzero(answers == 0))
            raise RuntimeError(
                "A callback saves in rank 0 alone, after callbacks have changed what other ranks "
                "keep for themselves. Save with `model.save` or `model.save_weights` in all ranks, "
                f"or before the change. Received: changes in {ranks}"
            )
        if not self._read:
            self._copy = _Copy(self.saved_as(), rows, self._began_with)

    def end_training(self) -> None:
        """Keeps a copy for a later save by one process, if it is small; called by all.

        A sum is no larger than the model and is kept. Rows per replica are dropped.
        """
        if self.saved_as() == SUM:
            self.hold()
        else:
            self._forget()

    def _forget(self) -> None:
        self._held, self._copy = False, None

    def share(self) -> None:
        """Gives each replica its part of what the first process has read; called by all."""
        if not self.several_processes:
            return
        copy = self._copy if self.is_new else None
        number = _UNCHANGED if copy is None else _KINDS.index(copy.kind)
        number = int(self._processes.all_gather([number])[0, 0])
        if number == _UNCHANGED:
            return
        kind = _KINDS[number]
        if kind == NOTHING:
            self.start_anew()
        rows = iter(copy.rows) if copy is not None and copy.rows is not None else None
        for entry, replica in self._order(kind):
            row = next(rows) if rows else no_row(entry)
            (row,) = self._processes.broadcast([row], 0)
            self._give(entry, kind, replica, row)
        self.settle()

    def settle(self) -> None:
        """Notes that all processes have read the same; called by all."""
        self._read = False
        self._forget()

    # --- files ----------------------------------------------------------------------------------

    def save_own_variables(self, store: dict) -> None:
        """Writes the state where Keras' saving asks for it."""
        if not self.has_rows():
            return
        kind, rows = self._rows_to_save()
        try:
            for (entry, replica), row in zip(self._order(kind), rows):
                for key, slot, shape in entry.places:
                    part = row[slot].reshape(shape)
                    if entry.shared:
                        store[key] = part[None]
                    elif kind == SUM:
                        self._write_sum(store, key, part)
                    else:
                        store[f"{key}.{replica}"] = part
        finally:
            for _ in rows:
                pass  # the other processes iterate over all rows, so this one must too

    def sizes(self) -> list[int]:
        """The size in bytes of each value in a file."""
        if not self.has_rows():
            return []
        return [
            math.prod(shape) * entry.variable.dtype.size
            for entry, _ in self._order(self.saved_as())
            for _, _, shape in entry.places
        ]

    def _write_sum(self, store: dict, key: str, part: np.ndarray) -> None:
        store[key] = part

    def _rows_to_save(self) -> tuple[str, Iterator[np.ndarray]]:
        if not self.several_processes:
            return self.saved_as(), self.gather()
        if self.announce is not None:
            self.announce()
            return self.saved_as(), self.gather()
        if self.ask is not None and not self.is_new:
            self.ask()
        copy = self._copy
        if copy is None or copy.rows is None or copy.of != self._checksums():
            raise RuntimeError(
                "Each rank has state of its own, and that of the others was not asked for. "
                "Save the model with `model.save` or `model.save_weights` on all ranks. "
                f"Received: rank {self._processes.rank} saves alone"
            )
        return copy.kind, iter(copy.rows)

    def adopt(self, kind: str, read: Callable[[str, int], np.ndarray] = _read_nothing) -> None:
        """Sets the state of this process' replicas to what a file has.

        Args:
            kind: how the file holds the rows.
            read: returns the value for a key and a replica; for a sum the replica is 0.
        """
        rows = Spool() if self.several_processes and self._processes.is_chief else None
        if kind == NOTHING:
            self.start_anew()
        for entry, replica in self._order(kind):
            row = entry.empty
            for key, slot, _ in entry.places:
                row[slot] = np.reshape(read(key, replica), np.shape(row[slot]))
            if rows is not None:
                rows.append(row)
            self._give(entry, kind, replica, row)
        if self.several_processes:
            self._copy, self._read = _Copy(kind, rows, self._checksums()), True
