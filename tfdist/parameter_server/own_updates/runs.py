"""The runs of a `fit` in which workers make their updates themselves."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.flat import FlatVariables
from tfdist.parameter_server.own_updates.function import OwnUpdatesFunction
from tfdist.parameter_server.own_updates.ledger import Ledger
from tfdist.parameter_server.own_updates.one_server import OneServer
from tfdist.parameter_server.own_updates.pace import Pace
from tfdist.parameter_server.own_updates.several_servers import SeveralServers
from tfdist.parameter_server.pull import codes_differences
from tfdist.parameter_server.work_item import Made, WorkItem
from tfdist.structures import Structure


class OwnUpdates:
    """What the chief does: it hands out batches, and counts updates in their order.

    Args:
        strategy: the strategy.
        function: what workers run.
        servers: reads the weights and makes updates.
        ledger: counts the updates on the parameter server.
    """

    def __init__(
        self,
        strategy: ChiefStrategy,
        function: OwnUpdatesFunction,
        servers: OneServer | SeveralServers,
        ledger: Ledger,
    ):
        differences = strategy.pull is not None and codes_differences(strategy.pull)
        self.pace = Pace(strategy.num_workers, differences)
        self._strategy = strategy
        self._function = function
        self._servers = servers
        self.ledger = ledger
        self._lock = threading.Lock()
        self._arrived: dict[int, tuple[Made, int]] = {}
        self._most = math.inf
        self._in_calls = 0
        self._has_ended = True
        self._without: FlatVariables | None = None  # what there could be

    def allow_flat(self, is_allowed: bool) -> None:
        """Lets there be flat variables, as in the beginning, or none; before `prepare`."""
        if is_allowed and self._without is not None:
            self._servers.flat, self._without = self._without, None
            self.forget_traces()
        elif not is_allowed and self._without is None:
            self._servers.flat, self._without = FlatVariables(), self._servers.flat
            self.forget_traces()

    def forget_traces(self) -> None:
        """Lets functions be traced anew, when variables have moved."""
        self._function.forget_traces()
        self.flat.forget_traces()
        self.ledger.forget_traces()

    @property
    def variables(self) -> list[tf.Variable]:
        """What is kept on the servers."""
        return self._servers.variables

    @property
    def flat(self) -> FlatVariables:
        """The flat variables, which are in use in a run."""
        return self._servers.flat

    def prepare(self, spec: Structure, timed: bool = False) -> None:
        """Traces what workers run; see `OwnUpdatesFunction.prepare`."""
        if self.ledger.lock.error is not None:
            self.ledger.lock.renew()
            self.forget_traces()
        self._function.prepare(spec, timed)

    def begin(self) -> None:
        """Begins a run."""
        with self._lock:
            self._has_ended = False
            self._arrived = {}
            self._most = math.inf
            self.ledger.open(self._strategy.version)
            self._servers.open()
            self.flat.fill()

    def end(self) -> None:
        """Ends a run, though calls may not have ended yet; they can make no updates any more."""
        try:
            self._write_back()
        finally:
            with self._lock:
                self._has_ended = True
                self._close_if_unused()

    def _write_back(self) -> None:
        """Gives the weights to the model's variables."""
        flat = self.flat
        if not flat.in_use:
            return
        try:
            with self.ledger.held():
                flat.write_back()
        except tf.errors.OpError as error:
            if not compat.is_lost_ps(error):  # else the weights are lost anyway
                raise
        finally:
            flat.in_use = False

    def _close_if_unused(self) -> None:
        if self._has_ended and not self._in_calls:
            self.ledger.lock.close()

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[int]:
        """In this context nobody reads or updates weights. It gives the number of updates."""
        # What the chief sends to a server arrives in order. A thread that waited for the lock there
        # would keep the thread that has the lock from letting it go.
        with self._lock, self.ledger.held():
            self._servers.complete()
            self.flat.write_back()
            yield self.ledger.updates()

    # --- in the main thread ---------------------------------------------------------------------

    def add(self, item: WorkItem) -> None:
        """Takes what a worker has made."""
        self._arrived.update((made.version, (made, item.worker)) for made in item.made)

    def next(self) -> tuple[Made, int] | None:
        """The next update and its worker; None if it has not arrived yet."""
        return self._arrived.pop(self._strategy.version + 1, None)

    def lose(self, version: int) -> int:
        """Loses the updates after update `version`. Returns how many of them had arrived.

        Others are not known in the chief. Their batches will be trained on again.
        """
        with self._lock:
            self._most = version
        self.flat.in_use = False  # the model's variables have the values of the snapshot
        lost = [number for number in self._arrived if number > version]
        for number in lost:
            del self._arrived[number]
        return len(lost)

    # --- in any thread --------------------------------------------------------------------------

    def compute(self, item: WorkItem, seeds: Sequence[np.ndarray]) -> None:
        """Lets the worker of the present device do a work item.

        Args:
            item: the work item.
            seeds: the states of random number generators at the beginning of the run.
        """
        for _, same in itertools.groupby(tuple(item.batches), key=lambda batch: id(batch.data)):
            batches = list(same)
            with self._lock:
                call = item.call = None if item.closed else self.ledger.call()
                first = item.number + len(item.made)
                if call is None:
                    return
                self._in_calls += 1
            start = time.perf_counter()
            data = batches[0].data
            with self._in_call():
                given = (call, item.worker, first, len(batches), seeds, data, item.noted)
                made = self._function(*given)
            self.pace.note(item.worker, len(batches), time.perf_counter() - start)
            with self._lock:
                if item.call is None:
                    return
                item.made += made
                item.call = None

    @contextlib.contextmanager
    def _in_call(self) -> Iterator[None]:
        """Notes when a call has ended."""
        try:
            yield
        finally:
            with self._lock:
                self._in_calls -= 1
                self._close_if_unused()

    def _ended(self, calls: Mapping[int, int], close: bool) -> dict[int, list[Made]]:
        """Ends calls: their updates by worker."""
        later = self.ledger.later(close)
        if not calls:
            return {}
        with self.ledger.held():
            self._servers.complete()
            return self.ledger.end(calls, later)

    def settle(self, items: Sequence[WorkItem], close: bool) -> None:
        """Ends work items early: notes what they have made, and leaves them the other batches.

        Args:
            items: the work items.
            close: whether the run ends.
        """
        with self._lock:
            calls = {item.worker: item.call for item in items if item.call is not None}
            made = self._ended(calls, close)
            for item in items:
                item.made += made.get(item.worker, [])
                item.made[:] = [update for update in item.made if update.version <= self._most]
                item.call, item.closed = None, close
                item.batches = item.batches[len(item.made) :]
        if close:
            for item in items:
                self.add(item)
