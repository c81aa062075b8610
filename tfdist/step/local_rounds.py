"""Rounds of local steps: replicas train apart, and meet after H updates.

Within a round a replica is a device of its own: it updates its own copy of the variables with its
own optimizer state, and nothing travels. At the end of the round all replicas take the mean of
their weights, or make a step of the outer optimizer with what they have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.local.choices import LocalSteps
from tfdist.step.accumulation import GradientAccumulator, warn_of_dropping
from tfdist.step.averaging import Averaging
from tfdist.step.local_beside import Beside
from tfdist.step.local_context import after, check_copies, check_slots
from tfdist.step.local_means import equalize
from tfdist.step.local_meetings import turns_of
from tfdist.step.local_pace import Pace
from tfdist.step.local_state import LocalState
from tfdist.step.local_traced import TracedSteps, Trained
from tfdist.step.model_optimizers import learning_rates
from tfdist.step.spans import EXCHANGE_OF_ROUND, beside, spans_of, timed
from tfdist.step.update import Update
from tfdist.structures import Structure


class LocalRounds(TracedSteps):
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
        places: the positions of the variables of each fragment.
        pace: as for `turns_of`.

    Attributes:
        state: what replicas have for themselves, and the momentum of the outer optimizer.
        sends_differences: whether differences travel at the end of a round, not weights.
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
        places: list[list[int]],
        pace: Pace | None,
    ):
        check_copies(variables)
        check_slots(update.optimizer, local)
        super().__init__(variables)
        self._strategy = tf.distribute.get_strategy()
        self._optimizer = optimizer
        self._update = update
        self._averaging = averaging
        self._accumulator = accumulator
        self._bucket_bytes = bucket_bytes
        rates = {id(rate) for rate in learning_rates(optimizer)}
        own = [v for v in optimizer.variables if id(v) not in rates]
        self.state = LocalState(own, variables, local)
        self._turns, self.sends_differences = turns_of(
            local, update, variables, averaging, self.state, bucket_bytes, places, pace
        )
        self._functions: dict[tuple, Callable[[], None]] = {}

    def handled(self) -> list[tf.Variable]:
        """All variables that meet, or that each replica has for itself."""
        own = [*self.variables, *self._optimizer.variables]
        return [*(variable.value for variable in own), *self.state.anchor, *self.state.momentum]

    @property
    def averaged(self) -> list[keras.Variable]:
        """What replicas move apart and average: the weights, and their moving averages."""
        return [*self.variables, *compat.moving_averages(self._update.optimizer)]

    # --- in steps -----------------------------------------------------------------------------

    def begin(self, strategy: tf.distribute.Strategy) -> None:
        """Notes what the weights are where a round begins; in cross-replica context.

        Called where a step begins, as a step may set weights before its update. Not noted at the
        end of the round before, as callbacks may set weights.
        """

        def note() -> None:
            for anchor, variable in zip(self.state.anchor, self.variables):
                anchor.assign(tf.convert_to_tensor(variable.value))

        def note_everywhere() -> None:
            strategy.extended.call_for_each_replica(note)

        tf.cond(self._is_at_first_step(), note_everywhere, lambda: None)

    def begin_with(self, values: dict[int, tf.Tensor]) -> None:
        """Notes what the weights were where the step began; in replica context, at its end.

        Args:
            values: of the variables, by id.
        """
        is_first = self._is_at_first_step()
        for anchor, variable in zip(self.state.anchor, self.variables):
            anchor.assign(tf.where(is_first, values[id(variable)], anchor))

    def _is_at_first_step(self) -> tf.Tensor:
        return tf.equal(tf.convert_to_tensor(self.state.steps), 0)

    def count(self, strategy: tf.distribute.Strategy, ready: Structure) -> None:
        """Counts an update; in cross-replica context.

        Args:
            strategy: the strategy.
            ready: tensors of the replicas that exist once there is a batch.
        """
        self._updates_of_step += 1
        with after(strategy, ready):
            updates = tf.convert_to_tensor(self.state.updates) + 1
            self.state.updates.assign(updates)
            touched = tf.convert_to_tensor(self.state.touched)
            self.state.touched.assign(tf.maximum(touched, self._touches))
            self.state.begun.assign(tf.ones_like(updates))

    def count_step(self) -> None:
        """Counts a step, with or without an update; in cross-replica context."""
        self.most_updates = max(self.most_updates, self._updates_of_step)
        self._updates_of_step = 0
        for counter in (self.state.steps, self.state.unsettled):
            counter.assign(tf.convert_to_tensor(counter) + 1)
        trained = tf.convert_to_tensor(self.state.trained)
        self.state.trained.assign(tf.maximum(trained, self._places_of(self.trained)))

    def end_step(self, strategy: tf.distribute.Strategy) -> tf.Tensor:
        """Lets the replicas meet, if it is time; in cross-replica context.

        Steps that were traced later may train weights of which this one does not know. Once one has
        run, all weights that the optimizer was built for travel, and those meet that it trains.

        Returns:
            Whether `settle` is to follow: a bool scalar.
        """
        known = self._trained
        is_left_out = tf.constant(self._places_of(known.left_out), tf.int64)

        def end(trained: Trained) -> tf.Tensor:
            return self._turns.end_step(strategy, trained)

        if not known.left_out:
            return end(known)
        trains_more = tf.reduce_any(tf.convert_to_tensor(self.state.trained) * is_left_out > 0)
        return tf.cond(trains_more, lambda: end(Trained(set(), known.trained)), lambda: end(known))

    def meet(self, strategy: tf.distribute.Strategy) -> None:
        """Gives all replicas the same weights, after any number of updates; as `end_step`."""
        self._turns.finish(strategy, self._trained)

    def settle(self, strategy: tf.distribute.Strategy, together: list[LocalRounds]) -> None:
        """Makes equal what steps have set besides the weights; in cross-replica context.

        Args:
            strategy: the strategy.
            together: the rounds of all optimizers of the step.
        """

        def make_equal() -> None:
            equalize(self.state, self.changed or (), self._least, self._bucket_bytes)

        def settle() -> None:
            if self.changed:
                timed(EXCHANGE_OF_ROUND, (), make_equal)
            for own in together:
                own.state.seen.assign(tf.zeros([]))

        strategy.extended.call_for_each_replica(settle)
        for own in together:
            own.state.unsettled.assign(0)

    # --- between steps ------------------------------------------------------------------------

    @property
    def under_way(self) -> tuple[int, int, int]:
        """Updates and steps of the round under way, and steps after which something differs."""
        state = self.state
        unsettled = int(state.unsettled.numpy()) if self.changed else 0
        return int(state.updates.numpy()), int(state.steps.numpy()), unsettled

    def finish(self) -> None:
        """Ends the round that is under way, if there is one; outside of functions, in all ranks."""
        key = self.begun_and_unsettled
        if any(key):
            self._cached(key, lambda: self._finish(*key))()

    @property
    def begun_and_unsettled(self) -> tuple[bool, bool]:
        """Whether the replicas have trained apart, and whether something else differs.

        Without an update too: a step may set weights itself while gradients wait for an update.
        """
        updates, steps, unsettled = self.under_way
        return updates + steps > 0, unsettled > 0

    @property
    def overlapping(self) -> Beside | None:
        """When fragments are sent and merged; None if nothing is sent before it is merged."""
        return self._turns if isinstance(self._turns, Beside) else None

    def exchange_of(self, number: int) -> Callable[[], None]:
        """A function that exchanges what was sent of a fragment; it may run in another thread.

        Called outside of functions where this exchange begins, in the same order in all processes.
        """
        strategy, turns, own = self._strategy, self.overlapping, (id(self), number)
        assert turns is not None
        if (spans := spans_of(strategy)) is not None:
            spans.begin_beside(own)

        def exchange() -> None:
            compat.number_when_traced()
            with strategy.scope(), beside(strategy, own):
                turns.exchange(strategy, number, self._trained)

        exchange.__name__ = f"exchange_of_fragment_{number}"  # Horovod matches by this name
        make = tf.function(exchange, autograph=False).get_concrete_function
        return self._cached(("exchange", number), make)

    def _cached(self, of: tuple, make: Callable[[], Callable]) -> Callable:
        """A function, made anew once something is measured or noted, or other things meet."""
        compressed = self._averaging.compressed
        monitor = id(compressed.monitor if compressed is not None else None)
        noting = spans_of(self._strategy)
        key = noting, *of, monitor, len(self.trained), *map(id, self.changed or ())
        if key not in self._functions:
            kept = {known: f for known, f in self._functions.items() if known[0] in (None, noting)}
            self._functions = kept
            self._functions[key] = make()
        return self._functions[key]

    def drop_synchronous(self) -> None:
        """Drops what compressors and accumulation have left from synchronous updates."""
        if self._averaging.compressed is not None:
            self._averaging.compressed.state.start_anew()
        accumulator = self._accumulator
        if accumulator is not None and accumulator.has_rows():
            warn_of_dropping(int(accumulator.micro_step.numpy()))
            accumulator.start_anew()

    def _finish(self, has_begun: bool, is_unsettled: bool) -> Callable[[], None]:
        @tf.function(autograph=False)
        def finish_round() -> None:
            with self._strategy.scope():
                self.bring_together(has_begun, is_unsettled)

        return finish_round

    @property
    def is_plain(self) -> bool:
        """Whether replicas keep nothing but the optimizer's state: no gradients, no residuals."""
        return self._accumulator is None and self._averaging.compressed is None

    def bring_together(self, has_begun: bool, is_unsettled: bool) -> None:
        """Gives all replicas the same of what `begun_and_unsettled` has told; in the scope."""
        if has_begun:
            self.meet(self._strategy)
        if is_unsettled:
            self.settle(self._strategy, [self])
