"""What a worker runs: it reads the weights, computes, and makes updates on the parameter server."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.parameter_server.flat import FlatVariables, StillUsed
from tfdist.parameter_server.noted import Noted
from tfdist.parameter_server.own_updates.ledger import MOST, Entry, Ledger
from tfdist.parameter_server.own_updates.lock import operations
from tfdist.parameter_server.own_updates.needs_chief import NeedsChief
from tfdist.parameter_server.own_updates.one_server import OneServer
from tfdist.parameter_server.own_updates.pulled import Pulled
from tfdist.parameter_server.own_updates.several_servers import SeveralServers
from tfdist.parameter_server.pull import PullCodec
from tfdist.parameter_server.work_item import Made
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.parameter_server.worker.points import ASKED, OF_UPDATE, PUSHED, Points, reached
from tfdist.parameter_server.worker.step_on_worker import StepOnWorker
from tfdist.parameter_server.worker.traced import Traced
from tfdist.structures import Structure

# What the function is given in one vector: the numbers of the worker, of the call and of the first
# batch, how many batches there are; and for each random number generator its state at the beginning
# of the run, two numbers, and how many numbers a step draws.
_WORKER, _CALL, _FIRST, _COUNT, _SEEDS = range(5)
_PER_SEED = 3


class OwnUpdatesFunction:
    """A function that makes an update with each of some batches, and can run on any worker.

    Args:
        step: the model's step.
        on_worker: computes gradients.
        servers: reads the weights and makes updates.
        ledger: counts updates.
        codec: codes the weights that workers read; None for nothing.
    """

    def __init__(
        self,
        step: FunctionalStep,
        on_worker: StepOnWorker,
        servers: OneServer | SeveralServers,
        ledger: Ledger,
        codec: PullCodec | None,
    ):
        self._step = step
        self._on_worker = on_worker
        self._servers = servers
        self._ledger = ledger
        self._codec = codec
        self._has_tried = False
        self.forget_traces()

    def forget_traces(self) -> None:
        """Lets the function be traced anew, when variables have moved."""
        self._servers.forget_traces()
        self._function = Traced(self._call)

    def prepare(self, spec: Structure, timed: bool = False) -> None:
        """Traces the function for batches of the type `spec`, or iterators over such batches.

        Args:
            spec: the type.
            timed: whether the function will also be called to note times.

        Raises:
            NeedsChief: when it turns out that the chief must make the updates.
        """
        size = _SEEDS + _PER_SEED * len(self._step.seeds)
        numbers = tf.TensorSpec([size], tf.int64)
        kinds = (False, True) if timed else (False,)
        while not all(self._can_run(numbers, spec, kind) for kind in kinds):
            self.forget_traces()

    def _can_run(self, numbers: tf.TensorSpec, spec: Structure, timed: bool) -> bool:
        """Traces the function. If it cannot run, it must be traced anew, in another way."""
        servers = self._servers
        try:
            return servers.calls.fit(self._function.prepare(numbers, spec, timed))
        except StillUsed:
            # What the update that was traced takes for one variable may be flat. If that was so
            # already, there is another use of the variables.
            servers.flat = FlatVariables(() if self._has_tried else servers.flat.updated)
            self._has_tried = True
            return False

    def __call__(
        self,
        call: int,
        worker: int,
        first: int,
        count: int,
        seeds: Sequence[np.ndarray],
        batch: Structure,
        noted: Noted | None = None,
    ) -> list[Made]:
        """Makes `count` updates, on the worker of the present device.

        Args:
            call: the number of the call.
            worker: the index of the worker.
            first: the number of batches that were begun earlier in this run.
            count: the number of batches, at most `MOST`.
            seeds: the states of random number generators at the beginning of the run.
            batch: the batch, if there is one; or an iterator, whose next elements are the batches.
            noted: knows the clocks; None if nobody wants to know times.
        """
        numbers = [worker, call, first, count]
        for seed, draws in zip(seeds, self._step.draws):
            numbers += [*seed.tolist(), draws]
        timed = noted is not None
        rows, *tables = self._function(tf.constant(numbers, tf.int64), batch, timed)
        made = self._ledger.made(call, *(row.numpy() for row in rows))
        if noted is None:
            return made
        times = (noted.times(OF_UPDATE, row) for row in tables[0].numpy().tolist())
        return [update._replace(times=of) for update, of in zip(made, times)]

    def _call(self, numbers: tf.Tensor, batch: Structure, timed: bool) -> tuple:
        """The rows of the worker in the ledger, after all updates.

        If it is `timed`, also the times of the points in `OF_UPDATE`, a row for each update.
        """
        with tf.control_dependencies(self._servers.started()):
            found = self._updated(numbers, batch, timed)
        self._servers.flat.check(tf.compat.v1.get_default_graph().external_captures)
        return found

    def _updated(self, numbers: tf.Tensor, batch: Structure, timed: bool) -> tuple:
        home = self._ledger.device
        with tf.device(home):
            worker, call = tf.unstack(tf.identity(numbers[:_FIRST]))
        first, count = numbers[_FIRST], numbers[_COUNT]
        key = numbers[_CALL] * MOST
        pulled = Pulled(self._servers, self._codec, worker)
        tables = [tf.zeros([MOST, len(OF_UPDATE)], tf.float64)] if timed else []
        coded = len(pulled.state)
        if isinstance(batch, tf.data.Iterator):

            def one(index: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
                # Only what stays on the worker goes from one update to the next.
                points = _asked(timed)
                seeds = self._seeds(numbers, first + index)
                numbered = (worker, call, key + index)
                given = (seeds, next(batch), pulled, state[:coded], points)
                _, after = self._update(numbered, *given)
                return (index + 1, *after, *_with_row(state[coded:], index, points))

            start = (tf.constant(0, tf.int64), *pulled.state, *tables)
            made, *state = tf.while_loop(
                lambda index, *state: index < count, one, start, parallel_iterations=1
            )
            tables = state[coded:]
        else:
            points = _asked(timed)
            given = (self._seeds(numbers, first), batch, pulled, pulled.state, points)
            made, _ = self._update((worker, call, key), *given)
            tables = _with_row(tables, tf.constant(0, tf.int64), points)
        with tf.device(home), tf.control_dependencies(operations(made)):
            return (self._ledger.rows(worker), *tables)

    def _update(
        self,
        numbered: tuple[tf.Tensor, tf.Tensor, tf.Tensor],
        seeds: Sequence[tf.Tensor],
        batch: Structure,
        pulled: Pulled,
        state: Sequence[tf.Tensor],
        points: Points | None,
    ) -> tuple[tf.Operation, Sequence[tf.Tensor]]:
        """An update, and what goes to the next one; see `Pulled`.

        Args:
            numbered: the worker, the call, and the number of the update; see `OneServer.update`.
            seeds: the states of random number generators.
            batch: the data.
            pulled: gets the weights.
            state: as for `Pulled.on_worker`.
            points: notes times; None if nobody wants to know.
        """
        worker, call, key = numbered
        values, version = self._servers.read()
        values, state = pulled.on_worker(values, version, state)
        outcome = self._on_worker.in_graph(values, seeds, batch, points)
        entry, check = Entry(worker, call, version), functools.partial(self._check, outcome.logs)
        made = self._servers.update(entry, key, outcome, check, points)
        reached(points, PUSHED, made)
        return made, state

    def _check(self, logs: Structure, results: Structure) -> None:
        """Raises `NeedsChief` if the step does what only the chief can handle."""
        if not self._step.optimizers:
            raise NeedsChief("the step applies no optimizer")
        if not isinstance(logs, dict) or set(logs) != set(results):
            raise NeedsChief("the step returns other logs than the metrics' results")
        if not all(
            result.shape.rank == 0 and result.dtype.is_floating for result in results.values()
        ):
            raise NeedsChief("results of metrics are no numbers")

    def _seeds(self, numbers: tf.Tensor, number: tf.Tensor) -> list[tf.Tensor]:
        """The states of random number generators for a batch, as if batches came in turn."""
        states = []
        for place, seed in zip(itertools.count(_SEEDS, _PER_SEED), self._step.seeds):
            first, second, draws = tf.unstack(numbers[place : place + _PER_SEED])
            states.append(tf.cast(tf.stack([first, second + number * draws]), seed.dtype))
        return states


def _asked(timed: bool) -> Points | None:
    """What notes the points of an update that begins here; None if nobody wants to know."""
    points = Points() if timed else None
    reached(points, ASKED)
    return points


def _with_row(
    tables: Sequence[tf.Tensor], index: tf.Tensor, points: Points | None
) -> list[tf.Tensor]:
    """The table of times, of which there is one or none, with the row of an update."""
    if points is None:
        return []
    row = points.vector(OF_UPDATE)
    return [tf.tensor_scatter_nd_update(table, [[index]], [row]) for table in tables]
