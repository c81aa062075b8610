"""State that each replica has for itself: saved with the model, and given back to the replica."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checksum import checksum
from tfdist.compat import SaveableState
from tfdist.engines.processes import OneProcess, Processes
from tfdist.step.replica_rows import NOTHING, PER_REPLICA, SUM, Entry, no_row
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


class ReplicaState(SaveableState, tf.Module):
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
    """

    def __init__(self, name: str):
        super().__init__(name=name)
        self._strategy = tf.distribute.get_strategy()
        self._processes: Processes = getattr(self._strategy, "processes", None) or OneProcess()
        self._copy: _Copy | None = None
        self._held = False
        self._held_at: Any = None
        self._read = False
        self.announce: Callable[[], Any] | None = None

    # --- what the subclasses say --------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """The variables, in the same order in all processes."""
        raise NotImplementedError

    def has_rows(self) -> bool:
        """Whether replicas have something of their own; the answer is the same in all processes."""
        return bool(self.entries())

    def saved_as(self) -> str:
        """How the rows are saved: `PER_REPLICA`, or `SUM`."""
        return PER_REPLICA

    def position(self) -> Any:
        """How far training is; the same in all processes."""
        return None

    def start_anew(self) -> None:
        """Resets this process' state to what it was before training."""
        raise NotImplementedError

    # --- for several processes ----------------------------------------------------------------

    @property
    def several_processes(self) -> bool:
        """Whether other processes have replicas too."""
        return self._processes.size > 1

    @property
    def is_new(self) -> bool:
        """Whether this process has read a file that the other processes may not have read."""
        return self._read and self._copy is not None and self._copy.of == self._checksums()

    @property
    def is_held(self) -> bool:
        """Whether the first process can save without the others; the same in all processes."""
        during_callbacks = getattr(self._strategy, "callbacks_run", False)
        return self._held and (during_callbacks or self._held_at == self.position())

    def hold(self) -> None:
        """Lets the first process save alone until `release`; called by all between steps."""
        if not self.several_processes:
            return
        copy = self._copy
        same = copy is not None and not self._read and copy.of == self._checksums()
        # All must agree: this process' state may be unchanged while another's has changed.
        if self.has_rows() and not self._processes.all_gather([int(same)]).all():
            rows = Spool() if self._processes.is_chief else None
            for row in self.gather():
                if rows is not None:
                    rows.append(row)
            self._copy = _Copy(self.saved_as(), rows, self._checksums())
        self._held, self._held_at, self._read = True, self.position(), False

    def release(self) -> None:
        """Ends what `hold` began; called by all processes."""
        self._held = False

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

    def gather(self) -> Iterator[np.ndarray]:
        """The rows of all replicas; all processes must call this and iterate to the end."""
        kind = self.saved_as()
        for entry, replica in self._order(kind):
            if kind == SUM:
                yield tf.convert_to_tensor(entry.variable).numpy()
                continue
            local = self._local(entry.variable)
            root = replica // len(local)
            own = self._processes.rank == root
            row = local[replica % len(local)].numpy() if own else no_row(entry)
            if root:  # the first process has its own rows already
                (row,) = self._processes.broadcast([row], root)
            yield row

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
        copy = self._copy
        if copy is None or copy.rows is None or copy.of != self._checksums():
            raise RuntimeError(
                "Each rank has gradients of its own that wait, and the others' were not asked for. "
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

    def _give(self, entry: Entry, kind: str, replica: int, row: np.ndarray) -> None:
        """Sets an entry in those of this process' replicas that the row belongs to."""
        local = self._local(entry.variable)
        first = self._processes.rank * len(local)
        if kind == SUM and not entry.shared:
            row = (row / self._strategy.num_replicas_in_sync).astype(row.dtype)
        for number, variable in enumerate(local, start=first):
            if entry.shared or kind == SUM or number == replica:
                variable.assign(row)

    def _order(self, kind: str) -> list[tuple[Entry, int]]:
        """The order of the rows: the entry and the replica of each row."""
        if kind == NOTHING:
            return []
        replicas = range(self._strategy.num_replicas_in_sync)
        return [
            (entry, replica)
            for entry in self.entries()
            for replica in ((0,) if entry.shared or kind == SUM else replicas)
        ]

    def _local(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        return self._strategy.experimental_local_results(variable)

    def _checksums(self) -> list[int]:
        """The checksums of this process' state."""
        return [
            checksum(local) for entry in self.entries() for local in self._local(entry.variable)
        ]

    def _local_rows(self) -> dict[str, np.ndarray]:
        """This process' state by key, one row per replica; one row if shared."""
        rows = {}
        for entry in self.entries():
            local = self._local(entry.variable)[: 1 if entry.shared else None]
            values = np.stack([replica.numpy() for replica in local])
            for key, slot, shape in entry.places:
                part = values if slot is ... else values[:, slot]
                rows[key] = part.reshape(len(values), *shape)
        return rows
