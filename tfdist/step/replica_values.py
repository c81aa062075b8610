"""Values that each replica has for itself, and how processes exchange them row by row."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.checksum import checksum
from tfdist.compat import SaveableState
from tfdist.engines.processes import OneProcess, Processes
from tfdist.step.replica_rows import NOTHING, PER_REPLICA, SUM, Entry, no_row, total_of


class ReplicaValues(SaveableState, tf.Module):
    """Variables of which each replica has values of its own.

    Args:
        name: the module's name.
    """

    def __init__(self, name: str):
        super().__init__(name=name)
        self._strategy = tf.distribute.get_strategy()
        self._processes: Processes = getattr(self._strategy, "processes", None) or OneProcess()

    # --- what the subclasses say --------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """The variables, in the same order in all processes."""
        raise NotImplementedError

    @property
    def owned(self) -> list[tf.Variable]:
        """Variables of the optimizer that need not be equal on all replicas."""
        return []

    @property
    def counters(self) -> list[tf.Variable]:
        """What all replicas count together."""
        return []

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

    # --- rows ---------------------------------------------------------------------------------

    @property
    def several_processes(self) -> bool:
        """Whether other processes have replicas too."""
        return not self._processes.is_alone

    def gather(self, processes: Processes | None = None) -> Iterator[np.ndarray]:
        """The rows of all replicas; all processes must call this and iterate to the end.

        Args:
            processes: what carries the rows; None for the strategy's own.
        """
        processes = processes or self._processes
        kind = self.saved_as()
        for entry, replica in self._order(kind):
            local = self._local(entry.variable)
            if kind == SUM and not entry.shared:
                summed = processes.sum_of(functools.partial(_wide_total, local)).numpy()
                yield summed.astype(entry.variable.dtype.as_numpy_dtype)
                continue
            root = replica // len(local)
            own = processes.rank == root
            row = local[replica % len(local)].numpy() if own else no_row(entry)
            if root:  # the first process has its own rows already
                (row,) = processes.broadcast([row], root)
            yield row

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
            for replica in ((0,) if entry.shared or kind == SUM else entry.holders or replicas)
        ]

    def _local(self, variable: tf.Variable) -> tuple[tf.Variable, ...]:
        return self._strategy.experimental_local_results(variable)

    def _checksums(self) -> list[int]:
        """What tells whether this process' state has changed: its checksums.

        Where processes may leave, one that leaves hands over its part to another one. This does not
        change the sum, which is what is saved. Only train steps do.
        """
        if self._processes.may_change:
            return [self._processes.steps]
        return [checksum(local) for entry in self.entries() for local in self.held(entry)]

    def held(self, entry: Entry) -> list[tf.Variable]:
        """The values that this process' replicas have."""
        local = self._local(entry.variable)
        first = self._processes.rank * len(local)
        return [
            variable
            for replica, variable in enumerate(local, start=first)
            if entry.holders is None or replica in entry.holders
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


def _wide_total(variables: Sequence[tf.Variable]) -> tf.Tensor:
    """The sum of variables; in float32 at least, or each process would round half precision."""
    total = total_of(variable.numpy() for variable in variables)
    return tf.constant(total.astype(np.promote_types(total.dtype, np.float32)))
