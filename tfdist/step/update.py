"""Stages 4 and 5: clip the global gradient and update, with the inner optimizer's own code.

`Update` is the interface of every kind of update; `update_of` chooses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.options import Options
from tfdist.step.finishing import finished
from tfdist.step.replica_state import ReplicaState
from tfdist.step.sharding.elementwise import needs_whole_variables
from tfdist.step.sharding.owned_update import UpdateOfOwned
from tfdist.step.sharding.update import UpdateOfParts

_Optimizer = keras.optimizers.Optimizer


class Update(Protocol):
    """How the user's Keras optimizer updates variables, and how its state is kept.

    Attributes:
        optimizer: the Keras optimizer that updates, below any loss scaling.
        state: what each replica has for itself of the optimizer's state; None if nothing.
        owners: for each variable the one replica that updates it; empty if all replicas do.
    """

    optimizer: keras.optimizers.Optimizer
    state: ReplicaState | None
    owners: Sequence[int]

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the state for `variables`, the trainable ones, in the strategy's scope."""

    def number(self) -> tf.Tensor:
        """How many updates there have been: an int scalar."""

    def apply(
        self, gradients: list, variables: list[keras.Variable], after: Sequence[Any] = ()
    ) -> None:
        """Clips and applies gradients that are summed over the replicas; in replica context.

        Args:
            gradients: the global gradients, or in sharded training this replica's parts of them;
                None where a variable has none.
            variables: the variables of the gradients: some of those given to `build`, or the parts
                of such a variable in its place.
            after: tensors that must be computed before any part of the update.
        """

    def finalize_variable_values(self, variables: list[keras.Variable]) -> None:
        """Ends training: some optimizers set variables to averages then; outside of replicas."""

    def set_weights(self, weights: list) -> None:
        """Sets the state to arrays."""

    def save_own_variables(self, store: dict) -> None:
        """Writes the state in the layout of the user's optimizer."""

    def load_own_variables(self, store: dict) -> None:
        """Reads the state."""


class WholeVariables(Update):
    """Every replica computes the same update of its own copy of each variable.

    Args:
        optimizer: the optimizer as the user gave it.
    """

    state = None
    owners = ()

    def __init__(self, optimizer: keras.optimizers.Optimizer):
        self._given = optimizer
        scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.optimizer = optimizer.inner_optimizer if scales else optimizer

    def build(self, variables: list[keras.Variable]) -> None:
        """Creates the optimizer's state, unless it exists."""
        if not self._given.built:
            self._given.build(variables)

    def number(self) -> tf.Tensor:
        """The optimizer's `iterations`."""
        return tf.convert_to_tensor(self.optimizer.iterations.value)

    def apply(
        self, gradients: list, variables: list[keras.Variable], after: Sequence[Any] = ()
    ) -> None:
        """Lets the optimizer clip and apply; see `Update`.

        Some parts of an update need no gradient, such as momentum times velocity. Without `after`,
        TensorFlow would begin the step with these parts, and send the first gradients later.
        """
        # One operation in between: without it, every operation of the update would depend on every
        # tensor of `after`.
        ready = [tf.group(*after)] if after else []
        with tf.control_dependencies(ready), compat.applying_reduced_gradients():
            self.optimizer.apply(finished(self.optimizer, gradients, variables), variables)

    def finalize_variable_values(self, variables: list[keras.Variable]) -> None:
        """Lets the optimizer end training."""
        self._given.finalize_variable_values(variables)

    def set_weights(self, weights: list) -> None:
        """Sets the optimizer's variables."""
        self._given.set_weights(weights)

    def save_own_variables(self, store: dict) -> None:
        """Lets the optimizer write. Keras' own method would first read each variable whole."""
        is_own = type(self._given).save_own_variables is not _Optimizer.save_own_variables
        if is_own or not compat.writes_rows(store):
            self._given.save_own_variables(store)
            return
        for place, variable in enumerate(self._given.variables):
            store[str(place)] = variable

    def load_own_variables(self, store: dict) -> None:
        """Lets the optimizer read."""
        self._given.load_own_variables(store)


def update_of(options: Options, optimizer: keras.optimizers.Optimizer) -> Update:
    """How variables are updated under `options`.

    Args:
        options: the options of the optimizer.
        optimizer: the Keras optimizer as the user gave it.
    """
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    sharding = options.sharded(replicas)
    if sharding is None:
        return WholeVariables(optimizer)
    # Where replicas have parts of the weights only, nobody has a whole variable.
    in_parts = UpdateOfParts(optimizer, options)
    if sharding == "parameters" or not needs_whole_variables(in_parts.optimizer):
        return in_parts
    return UpdateOfOwned(optimizer, options)
