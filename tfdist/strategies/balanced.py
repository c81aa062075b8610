"""What a synchronous strategy does so that faster replicas take larger parts of global batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.balance import whole_batches
from tfdist.balance.balancer import Balancer
from tfdist.balance.parts import part_of
from tfdist.balance.whole_batches import WholeBatch
from tfdist.data import batches
from tfdist.engines.current import alone
from tfdist.engines.replica_context import static_id
from tfdist.options import Options
from tfdist.step import end_of_data, loss_tags, own_loops, replica, weighting
from tfdist.step.clock import StepClock, when_computed
from tfdist.step.parts import StepParts
from tfdist.step.spans import Spans
from tfdist.strategies.keras_strategy import KerasStrategy
from tfdist.structures import Structure


class BalancedStrategy(KerasStrategy):
    """Mixed in below a synchronous strategy: its data and steps, if replicas are balanced.

    Attributes:
        balancer: has the replicas' shares of global batches; None if all parts are even.
        clock: measures how long replicas compute in train steps; None if nobody wants to know.
        spans: notes when replicas reach points of their steps; None if nobody wants to know.
        parts: sums up where the time of steps goes; None if nobody wants to know.
        skips_replicas: whether a replica with the share 0 of a batch gets no sample of it.
    """

    balancer: Balancer | None
    clock: StepClock | None = None
    spans: Spans | None = None
    parts: StepParts | None = None
    skips_replicas = False
    _trains_apart = False
    _measured_model: keras.Model | None = None

    def _init_balance(self, options: Options) -> None:
        self.balancer = _balancer(options, self.num_replicas_in_sync)

    @property
    def _reads_whole_batches(self) -> bool:
        """Whether Keras distributes data now, for a run with shares to move."""
        return self.balancer is not None and compat.keras_distributes()

    def _step_of_replica(
        self, known: weighting.Share | replica.Apart, args: tuple, keras_step: str | None
    ) -> replica.ReplicaStep:
        apart = None if isinstance(known, weighting.Share) else known
        share = known if isinstance(known, weighting.Share) else known.share
        loss_tags.mark_values(args)
        return replica.ReplicaStep(
            replica_id=static_id(),
            replicas=self.num_replicas_in_sync,
            share=share,
            apart=apart,
            own_loop=keras_step is None,
            samples=weighting.static_batch_size(args),
            is_eager=tf.executing_eagerly(),
        )

    def measure_steps(self, model: keras.Model) -> None:
        """Makes the next train step of `model` contain what those want to know who measure it."""
        wanted = (self.clock, self.spans, self.parts) != (None, None, None)
        self._measured_model = model if wanted else None
        self.trace_anew(model)

    def measure_parts(self, model: keras.Model) -> StepParts | None:
        """Makes train steps of `model` sum up where their time goes; None if they cannot."""
        if model.jit_compile and not self.compiles_replicas:
            return None  # XLA compiles the whole step, and has no clock
        if self.parts is None:
            self.parts = StepParts()
            self.measure_steps(model)
        return self.parts

    def stop_parts(self, model: keras.Model) -> None:
        """Makes the train steps of `model` be what they were."""
        if self.parts is not None:
            self.parts = None
            self.measure_steps(model)

    def stop_watching(self) -> None:
        """Called where an exception may have stopped callbacks in a run: ends what they began."""
        super().stop_watching()
        if self._measured_model is not None:
            self.clock = self.spans = self.parts = None
            self.measure_steps(self._measured_model)

    @contextlib.contextmanager
    def _measured(
        self, step: replica.ReplicaStep, args: Structure, keras_step: str | None
    ) -> Iterator[None]:
        """In this context a step runs that is measured, if somebody wants to know."""
        if self.clock is not None and keras_step == "train_step":
            self.clock.start(step)
        with contextlib.ExitStack() as measured:
            if self.parts is not None and keras_step == "train_step":
                is_first = static_id() % len(self.extended.worker_devices) == 0
                measured.enter_context(self.parts.of_step(args, is_first))
            if self.spans is not None and keras_step == "train_step":
                begun = self.spans.start(step.notes.when_computed, step.notes.computed, args)
                measured.enter_context(end_of_data.nothing_without(begun))
            yield

    def _measured_alone(self, fn: Callable, keras_step: str | None) -> Callable:
        """The step `fn` of the only replica, measured if somebody wants to know."""
        parts = self.parts
        if parts is None or keras_step != "train_step" or compat.is_in_xla():
            return fn

        def step(*args: Structure, **kwargs: Structure) -> Structure:
            with parts.of_step(args, is_first=True):
                return fn(*args, **kwargs)

        return step

    def _ends(self) -> tf.Tensor:
        """Where the replicas' parts of a global batch end; see `tfdist.balance.parts.bounds`."""
        return self._existing_balancer().ends()

    def _cutting_step(
        self, fn: Callable, keras_step: str | None
    ) -> Callable[..., tuple[Any, tf.Tensor | None]]:
        """A step on whole batches: it returns what `fn` does with a part, and measured speeds."""
        balancer, apart = self.balancer, self._trains_apart
        ends = self._ends()
        state_of_thread = compat.StateOfThread(self)

        def step_of_replica(whole: WholeBatch, *rest: Structure, **kwargs: Any) -> Any:
            # Parts are of different sizes, also where global batches are of one size.
            sizeless = batches.without_static_sizes(whole.batch)
            part = part_of(sizeless, ends, static_id(), skips=self.skips_replicas)
            batch = part.batch
            with end_of_data.nothing_without(batch):
                begun = tf.timestamp()
            known: weighting.Share | replica.Apart = part.share
            if apart:
                known = replica.Apart(part.share, part.samples_of(static_id()), begun)
            step = self._step_of_replica(known, (batch, *rest), keras_step)
            seconds: list[tf.Tensor] = []
            when_computed(step, begun, seconds.append)
            with (
                alone(apart),
                state_of_thread.adopted(),
                replica.publish(step),
                end_of_data.nothing_without((batch, begun)),
                self._measured(step, batch, keras_step),
            ):
                result = own_loops.weigh_returned(step, fn(batch, *rest, **kwargs))
            if balancer is None or part.sizes is None or not seconds:
                return result, None
            return result, balancer.speeds(step, part.sizes, seconds[0])

        return step_of_replica

    def _note_speeds(self, speeds: tf.Tensor | None) -> None:
        """Notes what such a step has returned about all replicas."""
        if speeds is not None:
            self._existing_balancer().note(self.experimental_local_results(speeds)[0])

    def _existing_balancer(self) -> Balancer:
        if self.balancer is None:
            raise ValueError(
                "A batch that Keras distributed for another strategy, with `balance=True`, is not "
                f"cut yet. Received: such a batch in {type(self).__name__}.run"
            )
        return self.balancer

    def _whole_batches(
        self, dataset: tf.data.Dataset, map_batches: Callable[..., tf.data.Dataset]
    ) -> tf.data.Dataset:
        local = len(self.extended.worker_devices)
        return whole_batches.dataset_of(dataset, local, map_batches)


def _balancer(options: Options, replicas: int) -> Balancer | None:
    if not options.balance or replicas == 1:
        return None
    largest = options.balance_max_share
    if largest is not None and largest < 1 / replicas:
        raise ValueError(
            "`balance_max_share` must be at least 1 / the number of replicas: smaller parts do not "
            f"make up a batch. Received: balance_max_share={largest} with {replicas} replicas"
        )
    return Balancer(replicas, largest)
