"""Rounds of local steps: replicas train apart, and meet after H updates.

Within a round a replica is a device of its own: it updates its own copy of the variables with its
own optimizer state, and nothing travels. At the end of the round all replicas take the mean of
their weights, or make a step of the outer optimizer with what they have moved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.engines.replica_context import static_id
from tfdist.local.choices import LocalSteps
from tfdist.step import exchange
from tfdist.step.accumulation import GradientAccumulator, warn_of_dropping
from tfdist.step.averaging import Averaging
from tfdist.step.exchange import Packing, enough
from tfdist.step.local_state import LocalState
from tfdist.step.model_optimizers import learning_rates
from tfdist.step.update import Update
from tfdist.structures import Structure


class LocalRounds:
    """Counts the updates of a round, and brings the replicas together at its end.

    Made in the strategy's scope, when the optimizer is built.

    Args:
        local: the user's choice.
        optimizer: the optimizer as the user gave it.
        update: updates the variables.
        variables: the trainable variables.
        averaging: sums differences over the replicas, compressed if asked for.
        accumulator: the gradients that wait for an update; None without accumulation.
        bucket_bytes: upper bound of a bucket in bytes.

    Attributes:
        state: what replicas have for themselves, and the momentum of the outer optimizer.
        statistics: variables that layers update from a replica's own batch; noted at tracing.
    """

    def __init__(
        self,
        local: LocalSteps,
        optimizer: keras.optimizers.Optimizer,
        update: Update,
        variables: Sequence[keras.Variable],
        averaging: Averaging,
        accumulator: GradientAccumulator | None,
        bucket_bytes: int,
    ):
        _check_copies(variables)
        self._strategy = tf.distribute.get_strategy()
        self._local = local
        self._update = update
        self._variables = list(variables)
        self._averaging = averaging
        self._accumulator = accumulator
        self._bucket_bytes = bucket_bytes
        self._sends_differences = not local.averages or averaging.compressed is not None
        rates = {id(rate) for rate in learning_rates(optimizer)}
        self.state = LocalState(
            [v for v in optimizer.variables if id(v) not in rates],
            variables,
            with_momentum=local.outer_decay > 0,
        )
        self.statistics: list[keras.Variable] = []
        self._finishing: dict[tuple[bool, int], Callable[[], None]] = {}

    # --- in steps -----------------------------------------------------------------------------

    def begin(self, strategy: tf.distribute.Strategy, ready: Structure) -> None:
        """Notes what the weights are where a round begins; in cross-replica context.

        Noted at the beginning, not at the end of the round before, as callbacks may set weights.

        Args:
            strategy: the strategy.
            ready: tensors of the replicas that exist once there is a batch.
        """
        with _after(strategy, ready):
            is_first = tf.equal(tf.convert_to_tensor(self.state.updates), 0)

        def note() -> None:
            for anchor, variable in zip(self.state.anchor, self._variables):
                anchor.assign(tf.convert_to_tensor(variable.value))

        def note_everywhere() -> None:
            strategy.extended.call_for_each_replica(note)

        tf.cond(is_first, note_everywhere, lambda: None)

    def count(self, strategy: tf.distribute.Strategy, ready: Structure) -> None:
        """Counts an update, and ends the round at the last one; in cross-replica context.

        Args:
            strategy: the strategy.
            ready: tensors of the replicas that exist once there is a batch.
        """
        state = self.state
        with _after(strategy, ready):
            updates = tf.convert_to_tensor(state.updates) + 1
            is_last = tf.greater_equal(updates, self._local.steps)
            state.updates.assign(updates)
            state.begun.assign(tf.ones_like(updates))
        tf.cond(is_last, lambda: self._end(strategy), lambda: None)

    def _end(self, strategy: tf.distribute.Strategy) -> None:
        """Ends the round, after any number of updates; in cross-replica context."""
        strategy.extended.call_for_each_replica(self._meet)
        strategy.extended.call_for_each_replica(self._average_statistics)
        self.state.updates.assign(0)
        self.state.rounds.assign(tf.convert_to_tensor(self.state.rounds) + 1)

    # --- between steps ------------------------------------------------------------------------

    def finish(self) -> None:
        """Ends the round that is under way, if there is one; outside of functions, in all ranks.

        Micro-batches after the last update have changed nothing but statistics of layers.
        """
        has_updates = int(self.state.updates.numpy()) > 0
        waits = self._accumulator is not None and int(self._accumulator.micro_step.numpy()) > 0
        if has_updates or (waits and self.statistics):
            compressed = self._averaging.compressed
            key = has_updates, id(compressed.monitor if compressed is not None else None)
            if key not in self._finishing:
                self._finishing[key] = self._function(has_updates)
            self._finishing[key]()

    def drop_synchronous(self) -> None:
        """Drops what compressors and accumulation have left from synchronous updates."""
        if self._averaging.compressed is not None:
            self._averaging.compressed.state.start_anew()
        accumulator = self._accumulator
        if accumulator is not None and accumulator.has_rows():
            warn_of_dropping(int(accumulator.micro_step.numpy()))
            accumulator.start_anew()

    def take_drift(self) -> float:
        """The mean drift of the rounds since the last call; NaN if there were none.

        The drift of a round is the root of the mean square of the replicas' distances to their mean
        weights, for the norm of the difference between these and the weights before the round.
        """
        number = float(self.state.drifts_measured.numpy())
        drift = float(self.state.drifts.numpy()) / number if number else float("nan")
        for variable in (self.state.drifts, self.state.drifts_measured):
            variable.assign(0.0)
        return drift

    def _function(self, has_updates: bool) -> Callable[[], None]:
        strategy = self._strategy

        @tf.function(autograph=False)
        def finish_round() -> None:
            with strategy.scope():
                if has_updates:
                    self._end(strategy)
                else:
                    strategy.extended.call_for_each_replica(self._average_statistics)

        return finish_round

    # --- the exchange -------------------------------------------------------------------------

    def _meet(self) -> None:
        """Gives every replica the same weights; in replica context."""
        samples = self.state.samples.read_value()
        own = [samples, samples * self._squared_move()]
        total, squares = tf.unstack(exchange.all_reduce([tf.stack(own)])[0])
        kept = compat.moving_averages(self._update.optimizer)
        if self._sends_differences:
            moved = self._make_outer_step(tf.math.divide_no_nan(samples, total))
            self._average(kept, samples, total)
        else:
            self._average([*self._variables, *kept], samples, total)
            moved = self._squared_move()
        self._note_drift(tf.math.divide_no_nan(squares, total), moved)

    def _squared_move(self) -> tf.Tensor:
        """The square of the norm of what this replica has moved in the round."""
        moves = [
            tf.cast(tf.convert_to_tensor(variable.value) - anchor, tf.float32)
            for anchor, variable in zip(self.state.anchor, self._variables)
        ]
        return _squared_norm(moves)

    def _note_drift(self, squares: tf.Tensor, moved: tf.Tensor) -> None:
        """Notes how far the replicas had come apart, for the norm of what they moved together.

        The mean square of the distances to the mean is the mean square less the square of the mean,
        so nothing more has to travel.
        """
        apart = tf.sqrt(tf.maximum(squares - moved, 0.0))
        self.state.drifts.assign_add(tf.math.divide_no_nan(apart, tf.sqrt(moved)))
        self.state.drifts_measured.assign_add(tf.cast(moved > 0, tf.float32))

    def _average_statistics(self) -> None:
        """Averages what layers gathered, also from micro-batches that wait; in replica context."""
        state = self.state
        samples = state.samples.read_value() + state.waiting.read_value()
        state.samples.assign(tf.zeros_like(samples))
        if self.statistics:
            (total,) = exchange.all_reduce([tf.identity(samples)])
            self._average(self.statistics, samples, total)

    def _average(
        self, variables: Sequence[keras.Variable], samples: tf.Tensor, total: tf.Tensor
    ) -> None:
        """Sets variables to their mean, weighted by samples.

        The weighted sums and the sum of the weights travel at the same time, so the sums are
        divided afterwards. Nothing changes if no replica had a sample that it could use.
        """
        if not variables:
            return
        own = [tf.convert_to_tensor(variable.value) for variable in variables]
        wide = [_widened(value) for value in own]
        specs = [tf.TensorSpec(value.shape, value.dtype) for value in wide]
        most = enough(sum(s.shape.num_elements() * s.dtype.size for s in specs), self._bucket_bytes)
        packing = Packing(wide, specs, most)
        packed = [flat * tf.cast(samples, flat.dtype) for flat in packing.pack(wide)]
        sums = packing.unpack(packing.sum(packed))
        for variable, value, weighted in zip(variables, own, sums):
            mean = tf.cast(weighted / tf.cast(total, weighted.dtype), value.dtype)
            variable.value.assign(tf.where(total > 0, mean, value))

    def _make_outer_step(self, share: tf.Tensor) -> tf.Tensor:
        """Douillard et al., algorithm 1, lines 12 to 14, with SGD and Nesterov's momentum.

        Args:
            share: this replica's share of the samples of the round.

        Returns:
            The square of the norm of what the replicas have moved in the mean.
        """
        local, anchors, momenta = self._local, self.state.anchor, self.state.momentum
        moved = [
            (anchor - tf.convert_to_tensor(variable.value)) * tf.cast(share, anchor.dtype)
            for anchor, variable in zip(anchors, self._variables)
        ]
        packing = self._averaging.packing(moved, accumulates=False)
        rounds = tf.convert_to_tensor(self.state.rounds)
        means = self._averaging.sum(packing, packing.pack(moved), rounds)
        for index, (anchor, mean) in enumerate(zip(anchors, means)):
            step = mean
            if momenta:
                velocity = local.outer_decay * momenta[index] + mean
                momenta[index].assign(velocity)
                step = mean + local.outer_decay * velocity
            weights = anchor - local.outer_rate * step
            self._variables[index].value.assign(weights)
        return _squared_norm([tf.cast(mean, tf.float32) for mean in means])


def index_of_replica() -> int:
    """The number of the running replica among those of this process; in replica context."""
    return static_id() % len(tf.distribute.get_strategy().extended.worker_devices)


def _squared_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in tensors])


def _widened(value: tf.Tensor) -> tf.Tensor:
    """`value` in float32 at least: half precision would round or overflow times the samples."""
    return tf.cast(value, tf.float32) if value.dtype.size < 4 else value


def _after(strategy: tf.distribute.Strategy, ready: Structure) -> contextlib.AbstractContextManager:
    """In this context operations run after what each replica has in `ready`."""
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    return tf.control_dependencies(list(strategy.experimental_local_results(ready)))


def _check_copies(variables: Sequence[keras.Variable]) -> None:
    """Raises ValueError for variables that replicas can only set together."""
    joint = [v.path for v in variables if v.value.aggregation != tf.VariableAggregation.NONE]
    if joint:
        raise ValueError(
            "With `local` each replica sets its own copy of a weight. Make these weights without "
            f'`aggregation`, or with `aggregation="none"`. Received: {joint}'
        )
