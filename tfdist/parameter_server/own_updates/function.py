"""What a worker runs: it reads the weights, computes, and makes updates on the parameter server."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from tfdist.parameter_server.chief.updates import Updates
from tfdist.parameter_server.own_updates.factors import Factors
from tfdist.parameter_server.own_updates.ledger import Entry, Ledger, Rows
from tfdist.parameter_server.own_updates.lock import operations
from tfdist.parameter_server.own_updates.needs_chief import NeedsChief
from tfdist.parameter_server.own_updates.pulled import Pulled
from tfdist.parameter_server.packing import Sent
from tfdist.parameter_server.pull import PullCodec
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
        updates: makes updates.
        ledger: counts them.
        factors: what the learning rates are multiplied by.
        metrics: the names of the metrics' results.
        codec: codes the weights that workers read; None for nothing.
    """

    def __init__(
        self,
        step: FunctionalStep,
        on_worker: StepOnWorker,
        updates: Updates,
        ledger: Ledger,
        factors: Factors,
        metrics: Sequence[str],
        codec: PullCodec | None,
    ):
        self._step = step
        self._on_worker = on_worker
        self._updates = updates
        self._ledger = ledger
        self._factors = factors
        self._metrics = list(metrics)
        self._codec = codec
        self.forget_traces()

    def forget_traces(self) -> None:
        """Lets the function be traced anew, when variables have moved."""
        self._function = Traced(self._call)
        # Not a part of the graph around it: in that graph, the operations of an optimizer would not
        # wait for the lock, as Keras and TensorFlow begin without control dependencies.
        self._applied = _apart(self._updates.in_graph)
        self._read = _apart(self._values)

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
        pulled = Pulled(self._updates, self._codec, self._ledger, worker)
        if isinstance(batch, tf.data.Iterator):

            def one(index: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
                # Only what stays on the worker goes from one update to the next.
                seeds = self._seeds(numbers, first + index)
                _, after = self._update(worker, call, seeds, next(batch), pulled, state)
                return (index + 1, *after)

            start = (tf.constant(0, tf.int64), *pulled.state)
            made = tf.while_loop(
                lambda index, *state: index < count, one, start, parallel_iterations=1
            )[0]
        else:
            seeds = self._seeds(numbers, first)
            made, _ = self._update(worker, call, seeds, batch, pulled, pulled.state)
        with tf.device(home), tf.control_dependencies(operations(made)):
            return self._ledger.rows(worker)

    def _values(self) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """The weights and their version; under the lock."""
        return self._updates.read(self._updates.reading.changing), self._ledger.version()

    def _update(
        self,
        worker: tf.Tensor,
        call: tf.Tensor,
        seeds: Sequence[tf.Tensor],
        batch: Structure,
        pulled: Pulled,
        state: Sequence[tf.Tensor],
    ) -> tuple[tf.Operation, Sequence[tf.Tensor]]:
        """An update, and what goes to the next one; see `Pulled`."""
        home = self._ledger.device
        with tf.device(home), self._ledger.lock.held() as held:
            held.until = values, version = self._read()
        with tf.device(home):
            version = held.after(version)
        values, state = pulled.on_worker(values, version, state)
        outcome = self._on_worker.in_graph(values, seeds, batch)
        sent = Sent((outcome.gradients, outcome.changes, outcome.assigned), home)

        def under_lock(tensors: Sequence[tf.Tensor], entry: Entry) -> tf.Tensor:
            staleness, made = self._ledger.begin(entry)
            with tf.control_dependencies([staleness, made]):
                factor = self._factors.of(staleness)
            with tf.control_dependencies([staleness, made, factor]):
                results, applied = self._applied(*sent.unpacked(tensors), factor, {})
            self._check(outcome.logs, results, applied)
            values = [tf.cast(results[name], tf.float64) for name in self._metrics]
            return self._ledger.finish(entry, staleness, made, values)

        with tf.device(home):
            entry = Entry(worker, call, version)
            with self._ledger.lock.held(after=(sent.tensors, entry)) as held:
                held.until = _apart(under_lock)(sent.tensors, entry)
        return held.released, state

    def _check(self, logs: Structure, results: Structure, applied: tf.Tensor | None) -> None:
        """Raises `NeedsChief` if the step does what only the chief can handle."""
        if not self._step.optimizers:
            raise NeedsChief("the step applies no optimizer")
        if applied is not None:
            raise NeedsChief("the loss is scaled")
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


def _apart(function: Callable) -> Callable:
    """The function as an operation of the graph around it, whose own operations run one by one.

    They are many and small, and to hand each to another thread would take longer than it does.
    """
    traced = tf.function(function, autograph=False, experimental_attributes={"_noinline": True})

    def call(*arguments: Structure) -> Structure:
        with tf.experimental.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            return traced(*arguments)

    return call
