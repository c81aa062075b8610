"""What the parameter server keeps about updates that workers make themselves.

A worker may be lost in the middle of a call. Then only the parameter server knows which updates of
the call were made.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfdist.parameter_server.own_updates.lock import operations
from tfdist.parameter_server.own_updates.queued_lock import QueuedLock
from tfdist.parameter_server.work_item import Made

MOST = 64
"""How many updates a call may have at most."""

# The columns of a worker's row: the number of the call, the updates that were begun and that were
# made in it, and of each of these the version and the staleness.
_CALL, _BEGUN, _MADE, _UPDATES = range(4)
_PER_UPDATE = 2


class Entry(NamedTuple):
    """What a worker does in an update.

    Attributes:
        worker: int64 scalar, the index of the worker.
        call: int64 scalar, the number of the call.
        read: int64 scalar, the version of the weights that the gradients were computed from.
    """

    worker: tf.Tensor
    call: tf.Tensor
    read: tf.Tensor


class Unfinished(NamedTuple):
    """An update that was begun but not made.

    Attributes:
        worker: the index of the worker.
        call: the number of the call.
        made: the number of updates that were made earlier in the call.
    """

    worker: int
    call: int
    made: int


class Rows(NamedTuple):
    """What the ledger has of a worker.

    Attributes:
        counts: int64 vector, by the columns above.
        results: float64 vector, the results of the metrics after each update.
    """

    counts: tf.Tensor
    results: tf.Tensor


class Ledger:
    """Counts updates on the parameter server, under a lock.

    Args:
        device: the parameter server.
        workers: the number of workers.
        metrics: the names of the metrics' results.

    Attributes:
        device: the parameter server.
        lock: the lock, for whatever reads or changes weights or this ledger.
        variables: what it keeps on the parameter server.
    """

    def __init__(self, device: str, workers: int, metrics: Sequence[str]):
        self.device = device
        self._metrics = list(metrics)
        self.lock = QueuedLock("tfdist updates", device)
        self._calls = itertools.count(1)
        self._chief = threading.Lock()
        self._closed = False
        with tf.device(device):
            self._version = tf.Variable(0, dtype=tf.int64, trainable=False)
            counts = tf.zeros([workers, _UPDATES + _PER_UPDATE * MOST], tf.int64)
            self._counts = tf.Variable(counts, trainable=False)
            results = tf.zeros([workers, len(self._metrics) * MOST], tf.float64)
            self._results = tf.Variable(results, trainable=False)
        self.variables = [self._version, self._counts, self._results]
        self.forget_traces()

    def forget_traces(self) -> None:
        """Lets functions be traced anew, when the variables have moved."""
        self._ended = tf.function(self._end, autograph=False)

    # --- in the chief ---------------------------------------------------------------------------

    def open(self, version: int) -> None:
        """Lets workers make updates; `version` have been made so far."""
        self.lock.open()
        counts = np.zeros(self._counts.shape, np.int64)
        # Calls of earlier runs, which may not have ended yet, can do nothing in this one.
        counts[:, _CALL] = self.later(False)
        with self.held(), tf.device(self.device):
            self._version.assign(version)
            # A `fit` that has ended with an error may have left an update that was begun only.
            self._counts.assign(counts)
        self._closed = False

    def call(self) -> int | None:
        """The number of a new call; None when no more are allowed."""
        with self._chief:
            return None if self._closed else next(self._calls)

    def held(self) -> contextlib.AbstractContextManager[None]:
        """In this context no worker reads or updates weights."""
        return self.lock.held_by_chief(self.device)

    def updates(self) -> int:
        """The number of updates so far; under the lock."""
        with tf.device(self.device):
            return int(self._version.read_value().numpy())

    def unfinished(self) -> Unfinished | None:
        """The update that was begun but not made; None if there is none; under the lock."""
        with tf.device(self.device):
            counts = self._counts.read_value().numpy()
        found = np.flatnonzero(counts[:, _BEGUN] != counts[:, _MADE])
        if not found.size:
            return None
        (worker,) = found.tolist()
        call, _, made = counts[worker, :_UPDATES].tolist()
        return Unfinished(worker, call, made)

    def forget(self, unfinished: Unfinished) -> None:
        """Takes back that an update was begun; under the lock."""
        worker, _, made = unfinished
        with tf.device(self.device):
            row, before = tf.constant(worker, tf.int64), tf.constant(made, tf.int64)
            _write(self._counts, row, [_BEGUN], [before])

    def later(self, close: bool) -> int:
        """A number that is higher than those of all calls so far.

        Args:
            close: whether to allow no more calls.
        """
        with self._chief:
            self._closed = self._closed or close
            return next(self._calls)

    def end(self, calls: Mapping[int, int], later: int) -> dict[int, list[Made]]:
        """Ends calls; under the lock. What they have not done by now, they cannot do any more.

        Args:
            calls: the numbers of the calls by worker.
            later: as from `later`.

        Returns:
            For each of the workers, the updates that its call has made.

        Raises:
            RuntimeError: when one of the updates was made in part only.
        """
        workers = sorted(calls)
        with tf.device(self.device):
            rows = self._ended(tf.constant(workers, tf.int64), tf.constant(later, tf.int64))
        found = zip(workers, *(row.numpy() for row in rows))
        return {worker: self.made(calls[worker], *row) for worker, *row in found}

    def made(self, call: int, counts: np.ndarray, results: np.ndarray) -> list[Made]:
        """The updates that a call has made, by its worker's rows.

        Raises:
            RuntimeError: when one of the updates was made in part only.
        """
        if counts[_CALL] != call:
            return []
        if counts[_BEGUN] != counts[_MADE]:
            raise RuntimeError(
                "A worker was lost in the middle of an update, of which the parameter server has "
                "made a part. Start the job again from a backup."
            )
        updates = counts[_UPDATES:].reshape(MOST, _PER_UPDATE).tolist()
        values = results.reshape(MOST, len(self._metrics)).tolist()
        return [
            Made(version, staleness, dict(zip(self._metrics, row)))
            for (version, staleness), row in zip(updates[: counts[_MADE]], values)
        ]

    def _end(self, workers: tf.Tensor, later: tf.Tensor) -> Rows:
        rows = self.rows(workers)
        places = tf.stack([workers, tf.fill(tf.shape(workers), tf.constant(0, tf.int64))], 1)
        with tf.control_dependencies(rows):
            self._counts.scatter_nd_update(places, tf.fill(tf.shape(workers), later))
        return rows

    # --- in a worker's function, on the parameter server ------------------------------------------

    def version(self) -> tf.Tensor:
        """The number of updates so far; under the lock."""
        return self._version.read_value()

    def rows(self, workers: tf.Tensor) -> Rows:
        """The rows of a worker, or of several."""
        return Rows(tf.gather(self._counts, workers), tf.gather(self._results, workers))

    def is_unfinished(self) -> tf.Tensor:
        """Whether an update was begun but not made; under the lock."""
        counts = self._counts.read_value()
        return tf.reduce_any(tf.not_equal(counts[:, _BEGUN], counts[:, _MADE]))

    def begin(self, entry: Entry) -> tuple[tf.Tensor, tf.Tensor]:
        """Begins an update; under the lock.

        Returns:
            Its staleness, and how many updates of this call were made before. The update must come
            after both. If the call was ended, an operation fails instead.
        """
        row = tf.gather(self._counts, entry.worker)
        version = self._version.read_value()
        is_open = tf.debugging.Assert(row[_CALL] <= entry.call, ["This call was ended."])
        is_first = row[_CALL] < entry.call
        with tf.control_dependencies([is_open]):
            made = tf.where(is_first, tf.zeros_like(row[_MADE]), row[_MADE])
            columns = [_CALL, _BEGUN, _MADE]
            begun = _write(self._counts, entry.worker, columns, [entry.call, made + 1, made])
        with tf.control_dependencies([begun]):
            return tf.identity(version - entry.read), tf.identity(made)

    def finish(
        self, entry: Entry, staleness: tf.Tensor, made: tf.Tensor, results: Sequence[tf.Tensor]
    ) -> tf.Tensor:
        """Counts an update; under the lock. Returns the number of updates so far.

        Args:
            entry: as for `begin`.
            staleness: what `begin` returned.
            made: what `begin` returned.
            results: the results of the metrics after the update, which has been made by then.
        """
        with tf.control_dependencies(operations(results)):
            version = self._version.assign_add(1, read_value=True)
        columns = [made * len(results) + place for place in range(len(results))]
        noted = [_write(self._results, entry.worker, columns, results)] if results else []
        place = _UPDATES + _PER_UPDATE * made
        with tf.control_dependencies(noted):
            columns, values = [_MADE, place, place + 1], [made + 1, version, staleness]
            counted = _write(self._counts, entry.worker, columns, values)
        with tf.control_dependencies([counted]):
            return tf.identity(version)


def _write(
    variable: tf.Variable, row: tf.Tensor, columns: Sequence, values: Sequence[tf.Tensor]
) -> tf.Operation:
    columns = tf.stack([tf.cast(column, tf.int64) for column in columns])
    places = tf.stack([tf.fill(tf.shape(columns), row), columns], axis=1)
    return tf.raw_ops.ResourceScatterNdUpdate(
        ref=variable.handle, indices=places, updates=tf.stack(values)
    )
