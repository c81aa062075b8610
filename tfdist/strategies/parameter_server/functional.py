"""A step of a Keras model as a function: from values and a batch to gradients and changes.

A worker may die in the middle of a step, and a gradient may be dropped. So a step changes nothing:
it takes the values of the variables and gives what is to be applied, which happens later and once.
Keras' `StatelessScope` keeps every assignment in the step from its variable.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _compat, replica
from tfdist.stages import collection


@dataclasses.dataclass
class Outcome:
    """What a step gave.

    Attributes:
        gradients: by the number of the application among `optimizers`, then by the number of the
            variable that the optimizer was built for.
        changes: what numeric variables grew by, by their number among `changed`.
        assigned: the new values of other variables, in the same way.
        logs: what the step returned.
    """

    gradients: dict[str, dict[str, Any]]
    changes: dict[str, tf.Tensor]
    assigned: dict[str, tf.Tensor]
    logs: Any


class _Scope(keras.StatelessScope):
    """Notes which variables the step assigns to."""

    def __init__(self, state_mapping: Sequence[tuple], collected: collection.Collected):
        super().__init__(state_mapping, collect_losses=True)
        self.updated: dict[int, keras.Variable] = {}
        self.read_late: set[str] = set()
        self._collected = collected

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """The value in the step; notes if an optimizer should have changed it by now."""
        for optimizer, gradients in self._collected.applied:
            for other, gradient in zip(optimizer.built_for, gradients):
                if other is variable and gradient is not None:
                    self.read_late.add(variable.path)
        return super().get_current_value(variable)

    def add_update(self, update: tuple) -> None:
        """Keeps the new value instead of assigning it."""
        self.updated[id(update[0])] = update[0]
        super().add_update(update)


class FunctionalStep:
    """`train_step` or `test_step` of a model as a function.

    Args:
        model: the built and compiled model.
        name: the name of the step.

    Attributes:
        variables: the variables whose values the function takes.
        seeds: the states of random number generators, whose values it takes too.
        optimizers: those that the step applies, in their order.
        changed: the variables that the step assigns to, in the order of their first use.
        draws: how many numbers a step draws with each of `seeds`, once it has been traced.
    """

    def __init__(self, model: keras.Model, name: str):
        self.model = model
        self._step: Callable = getattr(model, name)
        metrics = {id(variable) for variable in model.metrics_variables}
        weights = {id(variable) for variable in model.weights}
        self._metrics = list(model.metrics_variables)  # not among `model.variables`
        self.variables = [v for v in model.variables if id(v) in weights - metrics]
        self.seeds = [v for v in model.variables if id(v) not in weights | metrics]
        self.optimizers: list[Any] = []
        self.changed: list[keras.Variable] = []
        self.draws = [0] * len(self.seeds)

    @property
    def trainable(self) -> list[keras.Variable]:
        """Those of `variables` that are trained."""
        return [v for v in self.variables if v.trainable]

    def __call__(
        self,
        values: Sequence[tf.Tensor],
        seeds: Sequence[tf.Tensor],
        batch: Any,
        running: replica.ReplicaStep,
    ) -> Outcome:
        """Traces one step.

        Args:
            values: those of `variables`.
            seeds: those of `seeds`.
            batch: the data.
            running: the batch's place among those of the update.
        """
        start = {id(v): tf.zeros(v.shape, v.dtype) for v in self._metrics if is_summed(v)}
        pairs = [*zip(self.variables, values), *zip(self.seeds, seeds)]
        start.update({id(variable): value for variable, value in pairs})
        pairs += [(v, start[id(v)]) for v in self._metrics if id(v) in start]
        sources = {id(v): start[id(v)] for v in self.trainable}
        with (
            collection.collect() as collected,
            replica.publish(running),
            _compat.gradients_by_value(sources),
            _Scope(pairs, collected) as scope,
        ):
            logs = self._step(_without_optionals(batch))
        self._check_read(scope.read_late, running)
        self._count_draws(running)
        changes: dict[str, tf.Tensor] = {}
        assigned: dict[str, tf.Tensor] = {}
        for variable in scope.updated.values():
            before = start.get(id(variable))
            after = scope.get_current_value(variable)
            dtype = tf.as_dtype(variable.dtype)
            if dtype.is_floating or dtype.is_integer:
                before = tf.convert_to_tensor(variable.value) if before is None else before
                changes[self._key(variable)] = after - before
            else:
                assigned[self._key(variable)] = after
        self.optimizers[:] = [optimizer for optimizer, _ in collected.applied]
        gradients = {
            str(number): {str(i): g for i, g in enumerate(by_variable) if g is not None}
            for number, (_, by_variable) in enumerate(collected.applied)
        }
        return Outcome(gradients, changes, assigned, logs)

    def _check_read(self, read_late: set[str], running: replica.ReplicaStep) -> None:
        """Raises ValueError, or warns, where the step would use weights that it has updated."""
        if not read_late:
            return
        message = (
            "Under a parameter server the updates of a step are made after it, so what it computes "
            "after an optimizer was applied uses the weights from before. "
            f"Received: a {self.model.name}.train_step that reads {sorted(read_late)} after their "
            "update"
        )
        if running.replicas > 1:
            raise ValueError(f"{message}. Compute all gradients before the first update.")
        warnings.warn(message, stacklevel=2)

    def _count_draws(self, running: replica.ReplicaStep) -> None:
        drawn = [id(seed) for seed in running.drawn]
        self.draws = [drawn.count(id(seed)) for seed in self.seeds]

    def _key(self, variable: keras.Variable) -> str:
        """The number of `variable` among those that the step assigns to, as text."""
        for place, other in enumerate(self.changed):
            if other is variable:
                return str(place)
        self.changed.append(variable)
        return str(len(self.changed) - 1)


def is_summed(variable: keras.Variable) -> bool:
    """Whether the variable's value is the sum of what steps add, as that of metrics is."""
    return variable.aggregation == "sum"


def _without_optionals(batch: Any) -> Any:
    """The batch as Keras' trainer hands it to a step: None for what is not there."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )
