"""The end of a step of replicas that train apart: rounds end here, with all that steps have set.

A step may set more than the weights that its optimizers train: moving statistics, a teacher's
weights that follow the student's, counters. All of it must be one model's where a round ends. So a
round ends after the whole step, not inside the optimizer: a step may go on after an update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.step import end_of_data, replica
from tfdist.step.all_rounds import AllRounds
from tfdist.step.local_context import after
from tfdist.step.local_rounds import LocalRounds
from tfdist.step.sums import is_sum
from tfdist.structures import Structure


class StepEnd:
    """Completes one trace of a step.

    Args:
        owned: returns the variables that the step may set besides those that it trains.
        made: returns the variables of the strategy.
        all_rounds: the rounds of all optimizers of the strategy.
        advice: what to do about a variable that the step sets and that is not one of `owned`.
    """

    def __init__(
        self,
        owned: Callable[[], Sequence[keras.Variable]],
        made: Callable[[], Sequence[tf.Variable]],
        all_rounds: AllRounds,
        advice: str,
    ):
        self._owned = owned
        self._made = made
        self._all_rounds = all_rounds
        self._advice = advice
        self._start: int | None = None
        self._begun: list[LocalRounds] = []
        self._candidates: list[keras.Variable] = []
        self._changed: list[keras.Variable] = []
        self._by_hand: set[int] = set()  # resources that the step sets outside of its updates

    def completing(self, step: Callable) -> Callable:
        """Returns `step` with what follows it; it runs in each replica.

        A replica without samples takes back what the step has set: it makes no step.
        """

        def completed(*args: Structure, **kwargs: Structure) -> Structure:
            running = replica.current()
            assert running is not None and running.apart is not None
            samples, nonempty = tf.cast(running.apart.samples, tf.float32), running.share.nonempty
            begun = running.apart.begun
            meet = tf.distribute.get_replica_context().merge_call
            meet(self._begin, args=(samples,))
            if self._start is None:  # in the first replica, which all others follow
                self._start = compat.operations_so_far()
            running.notes.begun += self._begun
            # A graph leaves out what it reads and does not use.
            before = [tf.convert_to_tensor(v.value) for v in self._candidates]
            result = step(*args, **kwargs)
            end = compat.operations_so_far()
            meet(
                lambda strategy, *parts: self._end(strategy, running, end, *parts),
                args=(samples, nonempty, before, running.notes.at_update, begun),
            )
            return result

        return completed

    @tf.autograph.experimental.do_not_convert
    def _begin(self, strategy: tf.distribute.Strategy, samples: tf.Tensor) -> None:
        """Begins the rounds that have had no step; in cross-replica context."""
        owned = self._owned()
        self._begun = self._all_rounds.of(owned or None)
        possible = {id(v): v for v in owned}
        possible.update((id(v), v) for own in self._begun for v in own.variables)
        self._candidates = [v for v in possible.values() if may_differ(v)]
        with after(strategy, samples):
            for own in self._begun:
                own.begin(strategy)

    @tf.autograph.experimental.do_not_convert
    def _end(
        self,
        strategy: tf.distribute.Strategy,
        running: replica.ReplicaStep,
        end: int,
        samples: tf.Tensor,
        nonempty: tf.Tensor | None,
        before: list,
        at_update: dict,
        begun: tf.Tensor | None,
    ) -> None:
        """Ends the rounds that have had their updates; in cross-replica context."""
        rounds = list(running.notes.rounds)
        self._all_rounds.check_shared(rounds, running.own_loop)
        self._by_hand = self._set_by_hand(running.notes, end)
        self._changed = self._find_changed(strategy, rounds)
        if not rounds:
            self._check_changes_nothing()
            return
        for own in rounds:
            own.note_changed(self._changed)
            self._all_rounds.hold(own)
        if tf.executing_eagerly():
            self._all_rounds.note_trained()
        late = [own for own in rounds if not any(own is begun for begun in self._begun)]
        self._check_late(strategy, late)
        with after(strategy, samples):
            run = strategy.extended.call_for_each_replica
            run(self._begin_late, args=(late, before, at_update))
            for own in rounds:
                own.count_step()
            run(self._end_of_replica, args=(rounds, samples, nonempty, before, begun))
            if not self._all_rounds.meets_in_steps:
                return
            due = [own.end_step(strategy) for own in rounds]
        tf.cond(tf.reduce_any(due), lambda: rounds[0].settle(strategy, rounds), lambda: None)

    def _end_of_replica(
        self,
        rounds: list[LocalRounds],
        samples: tf.Tensor,
        nonempty: tf.Tensor,
        before: list,
        begun: tf.Tensor | None,
    ) -> None:
        for variable, value in zip(self._candidates, before if nonempty is not None else ()):
            if is_float(variable.value) and self._is_restored(variable):
                updated = tf.convert_to_tensor(variable.value)
                variable.value.assign(tf.where(nonempty > 0, updated, value))
        for own in rounds:
            own.state.count_samples(samples)
        if self._all_rounds.pace is not None and begun is not None:
            # Read after they were updated: the time of the update counts too.
            updated = [tf.convert_to_tensor(v.value) for own in rounds for v in own.variables]
            with end_of_data.nothing_without(updated):
                self._all_rounds.pace.note_step(begun, samples)

    def _begin_late(self, late: list[LocalRounds], before: list, at_update: dict) -> None:
        """Begins rounds that were unknown where the step began, with what there was then."""
        values = at_update | {id(v): value for v, value in zip(self._candidates, before)}
        for own in late:
            own.begin_with(values)

    def _is_restored(self, variable: keras.Variable) -> bool:
        """Whether a replica without samples takes back what the step has set."""
        if tf.executing_eagerly() or any(variable is v for v in self._changed):
            return True
        copies = tf.distribute.get_strategy().experimental_local_results(variable.value)
        return self._is_any_of(copies, self._by_hand)

    @staticmethod
    def _is_any_of(copies: Sequence[tf.Variable], handles: set[int]) -> bool:
        return any(id(compat.resource_of(copy)) in handles for copy in copies)

    def _set_by_hand(self, notes: replica.Notes, end: int) -> set[int]:
        """What the first replica sets outside of its updates, in the graph that is traced."""
        if tf.executing_eagerly():
            return set()
        graph, start, found = tf.compat.v1.get_default_graph(), self._start or 0, []
        for of, first, last in notes.updates:
            if of is graph:
                found += compat.written_since(start, first)
                start = last
        found += compat.written_since(start, end)
        return {id(handle) for handle in found}

    def _check_late(self, strategy: tf.distribute.Strategy, late: list[LocalRounds]) -> None:
        """Raises ValueError if it is unknown where the round of an optimizer begins."""
        known = {id(v) for v in self._candidates}
        unknown = [v for own in late for v in own.variables if id(v) not in known]
        for variable in unknown:
            copies = strategy.experimental_local_results(variable.value)
            if self._is_any_of(copies, self._by_hand):
                raise ValueError(
                    "A step sets weights itself, and it was not known where the step began that an "
                    "optimizer trains them in rounds. Call `optimizer.build(variables)` in the "
                    "strategy's scope before the first step, and let these be weights of the "
                    f"model. Received: a step that sets {variable.path}"
                )

    def _find_changed(
        self, strategy: tf.distribute.Strategy, rounds: list[LocalRounds]
    ) -> list[keras.Variable]:
        """The variables that this step sets, besides those that its optimizers train.

        Without a graph all variables that it may set: the mean of equal values is this value.

        Raises:
            ValueError: for a variable that cannot be made equal.
        """
        trained: set[int] = set().union(*(own.trained for own in rounds))
        candidates = [v for v in self._candidates if id(v) not in trained]
        if tf.executing_eagerly():
            self._check_eager()
            return [v for v in candidates if id(v) not in self._all_rounds.trained()]
        written = compat.written_since(self._start or 0)
        handles = {id(handle) for handle in written}

        def is_written(variable: tf.Variable) -> bool:
            return self._is_any_of(strategy.experimental_local_results(variable), handles)

        known = {id(v.value) for v in self._candidates}
        known |= {id(v) for own in rounds for v in own.handled()}
        foreign = [
            v.name
            for v in self._made()
            if id(v) not in known and is_float(v) and not is_sum(v) and is_written(v)
        ]
        if foreign:
            raise ValueError(
                "With `local`, what a step sets must become equal where the replicas meet. "
                f"{self._advice} If it is a sum over the replicas, make it with `synchronization="
                f"tf.VariableSynchronization.ON_READ`. Received: a step that sets {foreign}"
            )
        changed = [v for v in candidates if is_written(v.value)]
        joint = [v.path for v in changed if is_float(v.value) and _is_joint(v.value)]
        if joint:
            raise ValueError(
                "With `local` each replica sets its own copy of a variable. Make these variables "
                f'without `aggregation`, or with `aggregation="none"`. Received: {joint}'
            )
        return changed

    def _check_changes_nothing(self) -> None:
        """Raises ValueError if a step without an update sets variables."""
        if self._changed:
            raise ValueError(
                "With `local` a round has a number of updates, and what steps set becomes equal at "
                "its end. So a step that applies no optimizer cannot set variables. Let the step "
                "apply one, or leave out `local`. Received: a step without an update that sets "
                f"{[variable.path for variable in self._changed]}"
            )

    def _check_eager(self) -> None:
        if not self._owned():
            raise ValueError(
                "Without a `tf.function` it cannot be told what a step sets besides the weights. "
                "Put a `tf.function` around `strategy.run`, or say whose step it is: "
                "`tfdist.local_step(step, model)`. Received: an eager local step without a model"
            )


def is_float(variable: tf.Variable) -> bool:
    """Whether a variable has values that are averaged."""
    return variable.dtype.is_floating


def _is_joint(variable: tf.Variable) -> bool:
    return variable.aggregation != tf.VariableAggregation.NONE


def may_differ(variable: keras.Variable) -> bool:
    """Whether replicas may set a variable each for itself; seeds move on alike everywhere."""
    value = variable.value
    if is_sum(value):
        return False
    if not (is_float(value) or value.dtype.is_integer or value.dtype.is_bool):
        return False
    if not is_float(value) and _is_joint(value):
        return False
    return variable.name != "seed_generator_state"
