"""Keras' train function, where workers may make the updates themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.parameter_server.chief import errors
from tfdist.parameter_server.chief.training import TrainFunction
from tfdist.parameter_server.chief.turns import Limits
from tfdist.parameter_server.contracts import Guard
from tfdist.parameter_server.data.source import Source
from tfdist.parameter_server.flat import FlatVariables
from tfdist.parameter_server.own_updates import needs_chief
from tfdist.parameter_server.own_updates.factors import Factors
from tfdist.parameter_server.own_updates.function import OwnUpdatesFunction
from tfdist.parameter_server.own_updates.ledger import Ledger
from tfdist.parameter_server.own_updates.one_server import OneServer
from tfdist.parameter_server.own_updates.runs import OwnUpdates
from tfdist.parameter_server.own_updates.several_servers import SeveralServers
from tfdist.parameter_server.pull import codec_of
from tfdist.parameter_server.together import lists_to_flatten
from tfdist.parameter_server.work_item import Made, WorkItem
from tfdist.processes import callback_kinds
from tfdist.step.model_optimizers import optimizers_of
from tfdist.structures import Structure


class LeavingTrainFunction(TrainFunction):
    """Leaves updates to the workers wherever the chief need not make them itself.

    Attributes:
        why_chief: why the chief makes the updates; None where workers do.
    """

    why_chief: str | None = None
    _is_watched = False
    _refused: Mapping[str, str] = types.MappingProxyType({})
    _function: OwnUpdatesFunction | None = None
    _kept: OwnUpdates | None = None
    _own: OwnUpdates | None = None

    def begin_fit(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Notes whether a callback acts, or may look at weights, between two batches."""
        self._acting = next(filter(needs_chief.acts_in_batches, callbacks), None)
        self._is_watched = any(map(callback_kinds.may_look_in_batches, callbacks))

    def _trace(self, source: Source, spec: Structure) -> None:
        self._own = None
        try:
            if self._acting is not None:
                raise needs_chief.NeedsChief(f"{type(self._acting).__name__} acts in each batch")
            needs_chief.check(self.strategy, source)
            kept = self._kept = self._kept or self._make()
            if repr(spec) in self._refused:
                raise needs_chief.NeedsChief(self._refused[repr(spec)])
            kept.allow_flat(not self._is_watched)
            with self._noting(spec):
                kept.prepare(spec, timed=self.strategy.server_spans is not None)
            self.strategy.snapshots.note(kept.variables)
        except needs_chief.NeedsChief as reason:
            self.why_chief = str(reason)
            super()._trace(source, spec)
            return
        self.why_chief = None
        self._own = kept
        kept.pace.shares = source.is_shared
        kept.begin()

    @contextlib.contextmanager
    def _noting(self, spec: Structure) -> Iterator[None]:
        """Notes why the chief is needed, so that nothing is traced again in vain."""
        try:
            yield
        except needs_chief.NeedsChief as reason:
            self._refused = {**self._refused, repr(spec): str(reason)}
            raise

    def _make(self) -> OwnUpdates:
        strategy = self.strategy
        home = strategy.ps_devices[0]
        ledger = Ledger(home, len(strategy.addresses["worker"]), self._metrics)
        factors = Factors(strategy.policies, home)
        flat = FlatVariables(
            members
            for optimizer in optimizers_of(self.model).values()
            if isinstance(optimizer, DistributedOptimizer)
            for members in lists_to_flatten(optimizer.unwrap())
        )
        arguments = (self.step, self.updates, ledger, factors, self._metrics, flat)
        servers: OneServer | SeveralServers
        if len(strategy.ps_devices) == 1:
            servers = OneServer(*arguments)
        else:
            servers = SeveralServers(strategy, *arguments)
        computing = (self.step, self._on_worker, servers, ledger, codec_of(strategy))
        function = OwnUpdatesFunction(*computing)
        return OwnUpdates(strategy, function, servers, ledger)

    def _limits(self) -> Limits:
        limits = super()._limits()
        if limits.per_item > 1 or self._parts:
            return limits
        return dataclasses.replace(limits, size=self._size)

    def _size(self, worker: int, left: int | None) -> int:
        """How many batches the next work item should have."""
        return 1 if self._own is None else self._own.pace.size(worker, left)

    def _compute(self, item: WorkItem, read: Callable[[WorkItem], None]) -> None:
        own = self._own  # the main thread may end the run meanwhile
        if own is None:
            super()._compute(item, read)
            return
        self._begin_to_note(item, own.ledger.device)
        with errors.within_data():
            own.compute(item, self._seeds)

    def _settle(self, items: Sequence[WorkItem], close: bool) -> None:
        if self._own is None:
            return
        try:
            self._own.settle(items, close)
        except tf.errors.OpError as error:
            if not close:
                raise
            if self.strategy.snapshots.can_restore:  # it knows which of them are in the snapshot
                self._restore(error)
                self._own.settle(items, close)
            elif not compat.is_lost_ps(error):  # else the weights are lost anyway
                raise

    def _lose(self, version: int) -> int:
        beyond = 0 if self._own is None else self._own.lose(version)
        self._uncounted += beyond
        return beyond

    def _forget_traces(self) -> None:
        super()._forget_traces()
        if self._kept is not None:
            self._kept.forget_traces()

    def _guard(self) -> Guard | None:
        return self._own

    def _work(self) -> bool:
        if self._own is None:
            return super()._work()
        update = self._own.next()
        if update is not None:
            self._count(*update)
            return True
        item = self.next()
        if item is None:
            return False
        self._own.add(item)
        self.release(item)
        self.strategy.snapshots.take_if_due(self._guard())
        return True

    def _count(self, made: Made, worker: int) -> None:
        """Counts an update that a worker has made."""
        self._note_made(made, worker)
        strategy = self.strategy
        strategy.version = made.version
        factor = strategy.policies.learning_rate_factor(made.staleness)
        strategy.report.add(worker, made.staleness, factor)
        self._logs = made.results
        self._uncounted += 1

    def close(self) -> None:
        """Ends what the workers do, and counts what they have done meanwhile."""
        own = self._own
        try:
            super().close()
            self._own = None
            while own is not None and (update := own.next()) is not None:
                self._count(*update)
        finally:
            if own is not None:
                own.end()
