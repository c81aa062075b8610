"""How a worker reads and updates weights that are all on one parameter server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import tensorflow as tf

from tfdist.parameter_server.chief.updates import Updates
from tfdist.parameter_server.flat import FlatVariables
from tfdist.parameter_server.gradients import Outcome
from tfdist.parameter_server.own_updates.factors import Factors
from tfdist.parameter_server.own_updates.function_calls import FunctionCalls
from tfdist.parameter_server.own_updates.ledger import Entry, Ledger
from tfdist.parameter_server.own_updates.needs_chief import NeedsChief
from tfdist.parameter_server.packing import Sent, pack_all
from tfdist.parameter_server.reading import Reading
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.parameter_server.worker.points import LOCKED, UPDATED, Points, reached
from tfdist.structures import Structure

Check = Callable[[Structure], None]
"""Called with the results of the metrics when an update is traced; may raise `NeedsChief`."""


class OneServer:
    """Reads and updates under the lock of the ledger, on the server itself.

    Args:
        step: the model's step.
        updates: makes updates.
        ledger: counts them.
        factors: what the learning rates are multiplied by.
        metrics: the names of the metrics' results.
        flat: flat variables, which are in use while workers train.

    Attributes:
        calls: makes the functions that run on the server.
        flat: the same; when it is set, functions must be traced anew.
    """

    def __init__(
        self,
        step: FunctionalStep,
        updates: Updates,
        ledger: Ledger,
        factors: Factors,
        metrics: Sequence[str],
        flat: FlatVariables,
    ):
        self._step = step
        self._updates = updates
        self._ledger = ledger
        self._factors = factors
        self._metrics = list(metrics)
        self.flat = flat
        self.calls = FunctionCalls()
        self.forget_traces()

    @property
    def variables(self) -> list[tf.Variable]:
        """What it keeps on the servers."""
        return [*self._ledger.variables, *self._factors.variables, *self.flat.vectors]

    def open(self) -> None:
        """Called before workers begin."""

    def complete(self) -> None:
        """Completes an update that a lost worker has left: none, one server makes them whole."""

    def forget_traces(self) -> None:
        """Lets functions be traced anew, when variables have moved."""
        # Not a part of the graph around it: in that graph, the operations of an optimizer would not
        # wait for the lock, as Keras and TensorFlow begin without control dependencies.
        in_graph = functools.partial(
            self._updates.in_graph, context=self.calls.one_by_one, flat=self.flat
        )
        self._applied = self.calls.apart(in_graph)
        self._read = self.calls.apart(self._values)

    @property
    def reading(self) -> Reading:
        """How workers get the values of weights."""
        return self._updates.reading

    def started(self) -> list[tf.Operation]:
        """What must be done before a lock is taken: nothing, as the server waits for no other."""
        return []

    def read(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The values of the weights that change, by the keys of `reading`, and their version."""
        with tf.device(self._ledger.device), self._ledger.lock.held() as held:
            held.until = values, version = self._read()
        with tf.device(self._ledger.device):
            return values, held.after(version)

    def values(self, keys: Sequence[str]) -> dict[str, tf.Tensor]:
        """The values of these weights after one update."""
        with tf.device(self._ledger.device), self._ledger.lock.held() as held:
            held.until = found = self._updates.read(keys, self.flat)
        return found

    def _values(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        return self._updates.read(self.reading.changing, self.flat), self._ledger.version()

    def update(
        self,
        entry: Entry,
        key: tf.Tensor,
        outcome: Outcome,
        check: Check,
        points: Points | None = None,
    ) -> tf.Operation:
        """Makes an update.

        Args:
            entry: whose update it is.
            key: int64 scalar, the number of the update.
            outcome: what the worker has computed.
            check: see `Check`.
            points: notes when the lock is held, and when the update is made.
        """
        del key
        home = self._ledger.device
        gradients = outcome.gradients
        if self.flat.vectors:
            gradients = pack_all(gradients, self._step)
        sent = Sent((gradients, outcome.changes, outcome.assigned), home)

        def under_lock(tensors: Sequence[tf.Tensor], entry: Entry) -> tf.Tensor:
            staleness, made = self._ledger.begin(entry)
            with tf.control_dependencies([staleness, made]):
                factor = self._factors.of(staleness)
            with tf.control_dependencies([staleness, made, factor]):
                results, applied = self._applied(*sent.unpacked(tensors), factor, {})
            if applied is not None:
                raise NeedsChief("the loss is scaled")
            check(results)
            values = [tf.cast(results[name], tf.float64) for name in self._metrics]
            return self._ledger.finish(entry, staleness, made, values)

        with tf.device(home):
            with self._ledger.lock.held(after=(sent.tensors, entry)) as held:
                reached(points, LOCKED)
                held.until = made = self.calls.apart(under_lock)(sent.tensors, entry)
                reached(points, UPDATED, made)
        return held.released
