"""What a worker runs: it reads the weights, computes, and makes updates on the parameter server."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfdist.parameter_server.own_updates.ledger import MOST, Entry, Ledger, Rows
from tfdist.parameter_server.own_updates.lock import operations
from tfdist.parameter_server.own_updates.needs_chief import NeedsChief
from tfdist.parameter_server.own_updates.one_server import OneServer
from tfdist.parameter_server.own_updates.several_servers import SeveralServers
from tfdist.parameter_server.work_item import Made
from tfdist.parameter_server.worker.functional_step import FunctionalStep
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
    """

    def __init__(
        self,
        step: FunctionalStep,
        on_worker: StepOnWorker,
        servers: OneServer | SeveralServers,
        ledger: Ledger,
    ):
        self._step = step
        self._on_worker = on_worker
        self._servers = servers
        self._ledger = ledger
        self.forget_traces()

    def forget_traces(self) -> None:
        """Lets the function be traced anew, when variables have moved."""
        self._servers.forget_traces()
        self._function = Traced(self._call)

    def prepare(self, spec: Structure) -> None:
        """Traces the function for batches of the type `spec`, or iterators over such batches.

        Raises:
            NeedsChief: when it turns out that the chief must make the updates.
        """
        size = _SEEDS + _PER_SEED * len(self._step.seeds)
        self._function.prepare(tf.TensorSpec([size], tf.int64), spec)

    def __call__(
        self,
        call: int,
        worker: int,
        first: int,
        count: int,
        seeds: Sequence[np.ndarray],
        batch: Structure,
    ) -> list[Made]:
        """Makes `count` updates, on the worker of the present device.

        Args:
            call: the number of the call.
            worker: the index of the worker.
            first: the number of batches that were begun earlier in this run.
            count: the number of batches, at most `MOST`.
            seeds: the states of random number generators at the beginning of the run.
            batch: the batch, if there is one; or an iterator, whose next elements are the batches.
        """
        numbers = [worker, call, first, count]
        for seed, draws in zip(seeds, self._step.draws):
            numbers += [*seed.tolist(), draws]
        rows = self._function(tf.constant(numbers, tf.int64), batch)
        return self._ledger.made(call, *(row.numpy() for row in rows))

    def _call(self, numbers: tf.Tensor, batch: Structure) -> Rows:
        """The rows of the worker in the ledger, after all updates."""
        home = self._ledger.device
        with tf.device(home):
            worker, call = tf.unstack(tf.identity(numbers[:_FIRST]))
        first, count = numbers[_FIRST], numbers[_COUNT]
        key = numbers[_CALL] * MOST
        if isinstance(batch, tf.data.Iterator):

            def one(index: tf.Tensor) -> tuple[tf.Tensor]:
                # Nothing else goes from one update to the next: it would travel to the worker.
                self._update(
                    worker, call, key + index, self._seeds(numbers, first + index), next(batch)
                )
                return (index + 1,)

            start = (tf.constant(0, tf.int64),)
            made = tf.while_loop(lambda index: index < count, one, start, parallel_iterations=1)
        else:
            made = self._update(worker, call, key, self._seeds(numbers, first), batch)
        with tf.device(home), tf.control_dependencies(operations(made)):
            return self._ledger.rows(worker)

    def _update(
        self,
        worker: tf.Tensor,
        call: tf.Tensor,
        key: tf.Tensor,
        seeds: Sequence[tf.Tensor],
        batch: Structure,
    ) -> tf.Operation:
        """An update."""
        values, version = self._servers.read()
        outcome = self._on_worker.in_graph(values, seeds, batch)
        entry = Entry(worker, call, version)
        return self._servers.update(
            entry, key, outcome, functools.partial(self._check, outcome.logs)
        )

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
