"""Stages 4 and 5 in sharded training: each replica updates its parts, then all get the whole."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.engines.replica_context import check_unconditional, static_id
from tfdist.options import Options
from tfdist.step.local_context import check_copies, index_of_replica
from tfdist.step.sharding.clipping import clip_parts
from tfdist.step.sharding.elementwise import check_elementwise
from tfdist.step.sharding.exchange import all_gather
from tfdist.step.sharding.kept import ShardedUpdate
from tfdist.step.sharding.parts import Parts
from tfdist.step.sharding.state import SlotInParts

_Optimizer = keras.optimizers.Optimizer


class UpdateOfParts(ShardedUpdate):
    """The user's optimizer updates this replica's part of each variable.

    The whole variables are the truth: a part takes its value from them before each update, so that
    callbacks, `set_weights` and loading need to know of nothing.

    Args:
        optimizer: the optimizer as the user gave it.
        options: the bucket size.
    """

    def __init__(self, optimizer: keras.optimizers.Optimizer, options: Options):
        super().__init__(optimizer, options)
        self._parts: list[Parts] = []
        self._own: list[compat.PartVariable] = []
        self._whole: list[int] = []  # the places of variables that replicas have whole

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the optimizer's state for the parts of `variables`.

        Raises:
            ValueError: for an optimizer that has a state already, that saves in a way of its own,
                or that does not treat each element for itself.
        """
        self._check(variables)
        check_copies(variables)
        known = self._optimizers()
        for optimizer in known:
            check_elementwise(optimizer)
        replicas = self._strategy.num_replicas_in_sync
        self._variables = list(variables)
        self._parts = [Parts.of(tf.TensorSpec(v.shape, v.dtype), replicas) for v in variables]
        self._whole = [n for n, v in enumerate(variables) if not compat.is_sharded(v)]
        with self._making_state(), compat.recording_slots() as slots:
            self._own = [
                (compat.StoredPart if compat.is_sharded(variable) else compat.PartVariable)(
                    parts.part_shape, variable
                )
                for parts, variable in zip(self._parts, variables)
            ]
            self._given.build(list(self._own))
        for optimizer in self._optimizers():
            if optimizer not in known:  # a `MultiOptimizer` may choose them by variable
                check_elementwise(optimizer)
        self._check_common([slot.variable for slot in slots])
        parts_of = {id(own): parts for own, parts in zip(self._own, self._parts)}
        self._keep([SlotInParts(slot.variable, parts_of[id(slot.of)]) for slot in slots])

    def _check_common(self, in_parts: list[keras.Variable]) -> None:
        """Raises ValueError for state that may belong to one variable, and is not known to."""
        known = {id(variable) for variable in in_parts}
        unknown = [
            v.path for v in self._given.variables if id(v) not in known and math.prod(v.shape) > 1
        ]
        if unknown:
            raise ValueError(
                "With `sharding` an optimizer makes what it keeps for a variable with "
                "`add_variable_from_reference` or `add_optimizer_variables`, so that tfdist knows "
                f"which variable it is for. Received: {type(self.optimizer).__name__}, which has "
                f"made {unknown} otherwise"
            )

    def apply(
        self, gradients: list, variables: list[keras.Variable], after: Sequence[Any] = ()
    ) -> None:
        """Clips and applies this replica's parts of the global gradients; see `Update`."""
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        given = [places[id(variable)] for variable in variables]
        everywhere = range(len(self._variables))
        optimizers = self._optimizers()
        # The averages of all weights are updated, also of those that have no gradient.
        read = everywhere if any(o.use_ema for o in optimizers) else given
        overwrites = any(o.use_ema and o.ema_overwrite_frequency for o in optimizers)
        updated = self._with_gradients(given, gradients)
        ready = [tf.group(*after)] if after else []
        if self._saves_memory:
            check_unconditional()  # before it each replica has read what was set before
        with tf.control_dependencies(ready):
            self._read_parts(read, dict(zip(given, gradients)))
            with (
                self._updating(),
                compat.updating_own_copy(index_of_replica(), one_by_one=self._saves_memory),
                compat.applying_reduced_gradients(),
                compat.clipping_by(clip_parts),
            ):
                self.optimizer.apply(gradients, [self._own[place] for place in given])
        self._spread(everywhere if overwrites else updated, constrained=updated)
        self._clear(read)
        if self._saves_memory:
            check_unconditional()  # after it each replica may read what all have set

    @staticmethod
    def _with_gradients(places: list[int], gradients: list) -> list[int]:
        return [place for place, gradient in zip(places, gradients) if gradient is not None]

    def _read_parts(self, places: Sequence[int], gradients: Mapping[int, Any]) -> None:
        """Takes the values of parts from the whole variables; in replica context.

        Args:
            places: which variables.
            gradients: a part takes its value when its gradient has arrived, as it needs memory.
        """
        with compat.updating_own_copy(index_of_replica()):
            for place in self._of_whole(places):
                gradient = gradients.get(place)
                with tf.control_dependencies([] if gradient is None else [gradient]):
                    whole = tf.identity(self._variables[place].value)
                    self._own[place].assign(self._parts[place].part(whole, static_id()))

    def _spread(self, places: Sequence[int], constrained: Collection[int] = ()) -> None:
        """Gives all replicas the whole variables; in replica context.

        Args:
            places: which variables.
            constrained: those of them whose constraints are applied.
        """
        self._constrain([place for place in constrained if place not in self._whole])
        places = self._of_whole(places)
        parts = [self._parts[place] for place in places]
        own = [
            tf.ensure_shape(self._own[place].value, part.part_shape)
            for place, part in zip(places, parts)
        ]
        whole = all_gather(own, parts, self._bucket_bytes)
        with compat.updating_own_copy(index_of_replica()):
            for place, value in zip(places, whole):
                variable = self._variables[place]
                variable.assign(value)
                if place in constrained and variable.constraint is not None:
                    variable.assign(variable.constraint(variable))

    @property
    def _saves_memory(self) -> bool:
        """Whether an update takes as little memory as possible, not as little time."""
        return len(self._whole) < len(self._variables)

    def _of_whole(self, places: Sequence[int]) -> list[int]:
        """Those of `places` where replicas have the whole variable, and parts during updates."""
        return [place for place in places if place in self._whole]

    def _constrain(self, places: Sequence[int]) -> None:
        """Applies the constraints of weights in parts, one weight after the other."""
        for place in places:
            variable, parts = self._variables[place], self._parts[place]
            if variable.constraint is not None:
                own = tf.ensure_shape(self._own[place].value, parts.part_shape)
                (whole,) = all_gather([own], [parts], self._bucket_bytes)
                with compat.updating_own_copy(index_of_replica()):
                    constrained = variable.constraint(whole)
                    self._own[place].assign(parts.kept_part(constrained, static_id()))

    def _clear(self, places: Sequence[int]) -> None:
        """Frees the memory of parts; in replica context."""
        for place in places:
            self._own[place].clear(index_of_replica())

    def finalize_variable_values(self, variables: list[keras.Variable]) -> None:
        """Lets the optimizer end training, if it does anything then; in cross-replica context."""
        del variables  # those that the optimizer was built for
        plain = _Optimizer.finalize_variable_values
        if all(
            type(o).finalize_variable_values is plain and not o.use_ema for o in self._optimizers()
        ):
            return

        def end() -> None:
            everywhere = range(len(self._variables))
            self._read_parts(everywhere, {})
            with (
                compat.updating_own_copy(index_of_replica()),
                compat.applying_reduced_gradients(),
            ):
                self.optimizer.finalize_variable_values(list(self._own))
            self._spread(everywhere)
            self._clear(everywhere)

        strategy = self._strategy

        @tf.function(autograph=False)
        def end_everywhere() -> None:
            with strategy.scope():
                strategy.extended.call_for_each_replica(end)

        end_everywhere()
