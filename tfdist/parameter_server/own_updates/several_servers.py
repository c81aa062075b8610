"""How a worker reads and updates weights that are on several parameter servers.

The ledger and its lock are on the first server. Under the lock each server reads or updates the
variables that it has, all servers at the same time, by the same single numbers: the learning rate,
the count of updates. A worker may be lost when some servers have made their part of an update and
others have not. So before a worker takes the lock, each server has the worker's gradients for its
variables, and the chief can let the other servers make their parts. Until it has, nobody else gets
the lock.
"""

from __future__ import annotations

import contextlib
import functools
import uuid
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.parameter_server.chief.updates import Updates
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.flat import FlatVariables
from tfdist.parameter_server.gradients import Gradients, Outcome
from tfdist.parameter_server.own_updates import needs_chief
from tfdist.parameter_server.own_updates.factors import Factors
from tfdist.parameter_server.own_updates.function_calls import FunctionCalls
from tfdist.parameter_server.own_updates.ledger import MOST, Entry, Ledger
from tfdist.parameter_server.own_updates.lock import Held
from tfdist.parameter_server.own_updates.one_server import Check
from tfdist.parameter_server.own_updates.part_of_update import (
    KEY,
    KIND,
    STALENESS,
    PartOfUpdate,
    shared_numbers,
)
from tfdist.parameter_server.packing import Sent, device_of, on_device, pack_all
from tfdist.parameter_server.reading import Reading
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.parameter_server.worker.points import LOCKED, UPDATED, Points, reached
from tfdist.structures import Structure

_MOST_NUMBERS = 64  # room for the counts and learning rates of 30 optimizers


class _Kind(NamedTuple):
    """What is made of gradients of the same types.

    Attributes:
        parts: the parts of the update.
        finish: counts the update.
    """

    parts: list[PartOfUpdate]
    finish: Callable


class SeveralServers:
    """Reads and updates under the lock of the ledger, on all servers.

    Args:
        strategy: the strategy; the ledger is on its first server.
        step: the model's step.
        updates: makes updates.
        ledger: counts them.
        factors: what the learning rates are multiplied by.
        metrics: the names of the metrics' results.
        flat: flat variables, which are in use while workers train.

    Attributes:
        calls: makes the functions that run on the servers.
        flat: the same; when it is set, functions must be traced anew.
    """

    def __init__(
        self,
        strategy: ChiefStrategy,
        step: FunctionalStep,
        updates: Updates,
        ledger: Ledger,
        factors: Factors,
        metrics: Sequence[str],
        flat: FlatVariables,
    ):
        self._strategy = strategy
        self._devices = list(strategy.ps_devices)
        self._home = ledger.device
        self._step = step
        self._updates = updates
        self._ledger = ledger
        self._factors = factors
        self._metrics = list(metrics)
        self.flat = flat
        self.calls = FunctionCalls()
        self._name = f"tfdist gradients {uuid.uuid4().hex}"
        with tf.device(self._home):
            zeros = tf.zeros([_MOST_NUMBERS], tf.float64)
            self._noted = tf.Variable(zeros, trainable=False)
        self._marks: dict[str, list[tf.Variable]] = {}
        for device in self._devices:
            with tf.device(device):
                self._marks[device] = [
                    tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2)
                ]
        self.forget_traces()

    @property
    def variables(self) -> list[tf.Variable]:
        """What it keeps on the servers."""
        marks = [mark for of_server in self._marks.values() for mark in of_server]
        own = [*self._ledger.variables, *self._factors.variables, self._noted, *marks]
        return [*own, *self.flat.vectors]

    def open(self) -> None:
        """Called before workers begin: forgets the gradients of workers that were lost."""
        for kind in self._kinds:
            for part in kind.parts:
                part.clear()

    def forget_traces(self) -> None:
        """Lets functions be traced anew, when variables have moved."""
        self._kinds: list[_Kind] = []
        self._version = self.calls.apart(self._ledger.version)

    # --- in a worker's function -----------------------------------------------------------------

    def started(self) -> list[tf.Operation]:
        """Operations that are done when all servers have begun with the function.

        Before, no lock may be taken: a worker that is lost when only some servers have begun would
        let the one that has the lock wait for the others.
        """
        found = []
        for device, (begun, _) in self._marks.items():
            with tf.device(device):
                found.append(tf.debugging.Assert(begun >= 0, ["The number of an update."]))
        return found

    @property
    def reading(self) -> Reading:
        """How workers get the values of weights."""
        return self._updates.reading

    def read(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The values of the weights that change, by the keys of `reading`, and their version."""
        with tf.device(self._home), self._held() as held:
            version = self._version()
            found = self._on_servers(self.reading.changing)
            held.until = found, version
        with tf.device(self._home):
            return found, held.after(version)

    def values(self, keys: Sequence[str]) -> dict[str, tf.Tensor]:
        """The values of these weights after one update."""
        with tf.device(self._home), self._held() as held:
            held.until = found = self._on_servers(keys)
        return found

    def _held(self, after: Structure = ()) -> contextlib.AbstractContextManager[Held]:
        return self._ledger.lock.held(after, unless=self._ledger.is_unfinished)

    def _on_servers(self, keys: Sequence[str]) -> dict[str, tf.Tensor]:
        found: dict[str, tf.Tensor] = {}
        for device, there in self.reading.by_device(keys).items():
            with tf.device(device):
                read = functools.partial(self._updates.read, there, self.flat)
                found.update(self.calls.apart(read)())
        return found

    def update(
        self,
        entry: Entry,
        key: tf.Tensor,
        outcome: Outcome,
        check: Check,
        points: Points | None = None,
    ) -> tf.Operation:
        """Makes an update; see `OneServer.update`."""
        needs_chief.check_several(self._step, self._home)
        gradients = outcome.gradients
        if self.flat.vectors:
            gradients = pack_all(gradients, self._step)
        of_servers = (self._part(device, gradients, outcome) for device in self._devices)
        parts = [*filter(None, of_servers)]
        kept = [operation for part in parts for operation in part.keep(key)]
        finish = self.calls.apart(functools.partial(self._finished, check))
        begin = self.calls.apart(self._begun)
        with tf.device(self._home):
            kind = tf.constant(len(self._kinds), tf.float64)
            with self._held([entry, kept]) as held:
                reached(points, LOCKED)
                numbers, staleness, made = begin(entry, kind, key)
                applied = [part.apply(key, numbers) for part in parts]
                with tf.control_dependencies(applied):
                    held.until = finished = finish(entry, staleness, made)
                reached(points, UPDATED, finished)
        self._kinds.append(_Kind(parts, finish))
        return held.released

    def _part(self, device: str, gradients: Gradients, outcome: Outcome) -> PartOfUpdate | None:
        """What a server does in an update; None for nothing."""
        here = on_device(device, self._step, gradients, outcome.changes)
        changed = self._step.changed
        assigned = {k: v for k, v in outcome.assigned.items() if device_of(k, changed) == device}
        sent = Sent((*here, assigned), device)
        if not sent.tensors and device != self._home:
            return None
        name, marks = f"{self._name} {len(self._kinds)}", self._marks[device]
        of_step = (self._strategy, self._step, sent, self.calls, self.flat)
        return PartOfUpdate(device, name, marks, *of_step)

    def _begun(
        self, entry: Entry, kind: tf.Tensor, key: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        staleness, made = self._ledger.begin(entry)
        with tf.control_dependencies([staleness, made]):
            factor = self._factors.of(staleness)
            shared = [variable.value for variable in shared_numbers(self._step)]
            numbers = [factor, staleness, kind, key, *shared]
            found = [tf.cast(number, tf.float64) for number in numbers]
        numbers = tf.stack(found)
        padded = tf.pad(numbers, [[0, _MOST_NUMBERS - len(found)]])
        noted = self._noted.assign(padded, read_value=False)
        with tf.control_dependencies([noted]):
            return tf.identity(numbers), tf.identity(staleness), tf.identity(made)

    def _finished(
        self, check: Check, entry: Entry, staleness: tf.Tensor, made: tf.Tensor
    ) -> tf.Tensor:
        results = self._step.model.get_metrics_result()
        check(results)
        values = [tf.cast(results[name], tf.float64) for name in self._metrics]
        return self._ledger.finish(entry, staleness, made, values)

    # --- in the chief ---------------------------------------------------------------------------

    def complete(self) -> None:
        """Completes the update that a lost worker has left, if there is one; under the lock."""
        unfinished = self._ledger.unfinished()
        if unfinished is None:
            return
        worker, call, made = unfinished
        with tf.device(self._home):
            key = tf.constant(call * MOST + made, tf.int64)
            numbers = self._noted.read_value()
            noted = numbers.numpy()
            if int(noted[KEY]) != key.numpy():  # the worker was lost before any part could begin
                self._ledger.forget(unfinished)
                return
            kind = self._kinds[int(noted[KIND])]
            for part in kind.parts:
                part.apply(key, numbers)
            numbers = tf.constant([worker, call, 0, int(noted[STALENESS]), made], tf.int64)
            *entry, staleness, made_before = tf.unstack(numbers)
            kind.finish(Entry(*entry), staleness, made_before)
