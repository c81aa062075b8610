"""Stages 4 and 5 in sharded training, for optimizers that look at whole variables.

Each variable belongs to one replica, which updates it and gives it to the others.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Container, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.engines.replica_context import static_id
from tfdist.step.local_context import check_copies, index_of_replica
from tfdist.step.sharding.clipping import clip_whole
from tfdist.step.sharding.elementwise import begins_with_values
from tfdist.step.sharding.kept import ShardedUpdate
from tfdist.step.sharding.owners import Owned, keep_of_owner, owners_of, used_by_update
from tfdist.step.sharding.state import SlotInParts
from tfdist.step.sharding.to_owners import from_owners

_Optimizer = keras.optimizers.Optimizer


class UpdateOfOwned(ShardedUpdate):
    """The user's optimizer updates the variables that this replica owns.

    Replicas have all variables whole. Of the optimizer's state each has that for its own variables.
    """

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the optimizer's state for `variables`, each variable's on its owner.

        Raises:
            ValueError: for an optimizer that has a state already, that averages weights, or that
                has state of which it is not known which variable it is for.
        """
        self._check(variables)
        self._check_averages()
        check_copies(variables)
        self._variables = list(variables)
        sizes = [math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables]
        self.owners = owners_of(sizes, self._strategy.num_replicas_in_sync)
        places = {id(variable): place for place, variable in enumerate(variables)}
        is_set = begins_with_values(self.optimizer)  # which needs the copies of all replicas
        owners: dict[int, tuple[keras.Variable, int]] = {}

        def made(slot: compat.Slot) -> None:
            owner = self.owners[places[id(slot.of)]]
            owners[id(slot.variable)] = slot.variable, owner
            if not is_set:
                keep_of_owner(slot.variable, owner)

        with self._making_state(), compat.recording_slots(made):
            self._given.build(list(variables))
        for variable, place in self._made_otherwise(owners):
            owners[id(variable)] = variable, self.owners[place]
        in_order = [owners[id(v)] for v in self._given.variables if id(v) in owners]
        for variable, owner in in_order:
            keep_of_owner(variable, owner)
        self._keep(
            [
                SlotInParts(v, Owned(tuple(v.shape), tf.as_dtype(v.dtype), owner))
                for v, owner in in_order
            ]
        )

    def _check_averages(self) -> None:
        if self.optimizer.use_ema:
            raise ValueError(
                "With `sharding` an optimizer that looks at whole variables updates those that the "
                "replica owns, so it cannot average all weights. Leave out `use_ema`, or "
                f"`sharding`. Received: {type(self.optimizer).__name__} with use_ema=True"
            )

    def _made_otherwise(self, known: Container[int]) -> list[tuple[keras.Variable, int]]:
        """State of which the optimizer has not said for which variable it is; and that one's place.

        Adafactor keeps means over rows and columns, of one element too. An update of the variable
        uses them.
        """
        # Any update uses these two. A schedule's rate is no variable, and found by no `id`.
        common = {id(self.optimizer.iterations), id(self.optimizer.learning_rate)}
        state = [v for v in self.optimizer.variables if id(v) not in known and id(v) not in common]
        found: dict[int, list[tuple[keras.Variable, int]]] = {}
        for place, variable in enumerate(self._variables if state else ()):
            for one in used_by_update(self.optimizer, variable, state):
                found.setdefault(id(one), []).append((one, place))
        several = [users[0][0].path for users in found.values() if len(users) > 1]
        if several:
            raise ValueError(
                "With `sharding` what an optimizer that looks at whole variables keeps, except for "
                "the number of updates and the learning rate, must belong to one variable each. "
                f"Leave `sharding` out. Received: {type(self.optimizer).__name__} with {several}"
            )
        # What no update uses stays as it is: Adafactor makes it for vectors.
        return [users[0] for users in found.values()]

    def apply(
        self, gradients: list, variables: list[keras.Variable], after: Sequence[Any] = ()
    ) -> None:
        """Clips and applies the global gradients of this replica's variables; see `Update`.

        Args:
            gradients: for a variable of another replica some tensor, or None.
            variables: the variables of the gradients.
            after: tensors that must be computed before any part of the update.
        """
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        given = [places[id(variable)] for variable in variables]
        updated = [place for place, g in zip(given, gradients) if g is not None]
        mine = [
            (gradient, variable)
            for gradient, variable, place in zip(gradients, variables, given)
            if gradient is None or self.owners[place] == static_id()
        ]
        acting = {self.owners[place] for place in updated}
        ready = [tf.group(*after)] if after else []
        with (
            tf.control_dependencies(ready),
            compat.updating_own_copy(index_of_replica()),
            compat.applying_reduced_gradients(),
            self._clipping(mine) as clipped,
        ):
            with self._updating():
                if (
                    static_id() in acting or not acting
                ):  # without any gradient Keras raises an error
                    self.optimizer.apply(clipped, [variable for _, variable in mine])
                else:
                    self.optimizer.iterations.assign_add(1)  # as `apply` does
            self._give(updated)

    @contextlib.contextmanager
    def _clipping(self, mine: Sequence[tuple[Any, keras.Variable]]) -> Iterator[list]:
        """In this context the optimizer clips as one that has all gradients does."""
        gradients = [gradient for gradient, _ in mine]
        if not self.optimizer.global_clipnorm:
            yield gradients
            return
        wide = any(tf.as_dtype(v.dtype) == tf.float64 for v in self._variables)
        clipped = clip_whole(self.optimizer, gradients, tf.float64 if wide else tf.float32)
        with compat.clipping_by(lambda optimizer, given: given):
            yield clipped

    def _give(self, places: Sequence[int]) -> None:
        """Gives the variables that were updated to all replicas."""
        owned = {
            place: Owned(tuple(v.shape), tf.as_dtype(v.dtype), self.owners[place])
            for place, v in ((place, self._variables[place]) for place in places)
        }
        own = {
            place: tf.identity(self._variables[place].value)
            for place, one in owned.items()
            if one.owner == static_id()
        }
        for place, value in from_owners(own, owned, self._bucket_bytes).items():
            if place not in own:
                self._variables[place].assign(value)

    def finalize_variable_values(self, variables: list[keras.Variable]) -> None:
        """Does nothing, as only averages of weights would be set."""
        del variables
