"""A step of a Keras model as a function: from values and a batch to gradients and changes.

A worker may die in the middle of a step, and a gradient may be dropped. So a step changes nothing:
it takes the values of the variables and gives what is to be applied, which happens later and once.
Keras' `StatelessScope` keeps every assignment in the step from its variable.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.parameter_server import partitions
from tfdist.step import collection, loss_scale, replica


@dataclasses.dataclass
class Outcome:
    """What a step gave.

    Attributes:
        gradients: by the number of the application among `optimizers`, then by the number of the
            variable, or part of one, that the optimizer was built for.
        changes: what numeric variables grew by, by their number among `changed`.
        assigned: the new values of other variables, in the same way.
        logs: what the step returned.
    """

    gradients: dict[str, dict[str, Any]]
    changes: dict[str, tf.Tensor]
    assigned: dict[str, tf.Tensor]
    logs: Any


class _Scope(keras.StatelessScope):
    """Notes which variables the step assigns to.

    Args:
        state_mapping: values, by variable.
        parts: the values of all parts of the weights, by the id of the weight.
        devices: where they are, in the same way.
        collected: what the optimizers were given.
    """

    def __init__(
        self,
        state_mapping: Sequence[tuple],
        parts: Mapping[int, list[tf.Tensor]],
        devices: Mapping[int, list[str]],
        collected: collection.Collected,
    ):
        super().__init__(state_mapping, collect_losses=True)
        self.updated: dict[int, keras.Variable] = {}
        self.read_late: set[str] = set()
        self._parts = parts
        self._devices = devices
        self._collected = collected

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        """The value in the step; notes if an optimizer should have changed it by now.

        Parts are joined at each reading, so that the tape of the moment sees it.
        """
        self._note_reading(variable)
        if id(variable) in self._parts and id(variable) not in self.updated:
            return partitions.whole(self._parts[id(variable)])
        return super().get_current_value(variable)

    def rows(self, variable: keras.Variable, ids: Any) -> tf.Tensor | None:
        """Rows of a weight, of which the others stay where they are; None to read all of it.

        Args:
            variable: the weight.
            ids: the numbers of the rows; negative ones count from the end.
        """
        if id(variable) not in self._parts or id(variable) in self.updated:
            return None
        if partitions.is_small(variable):
            return None
        self._note_reading(variable)
        found = partitions.lookup(self._parts[id(variable)], self._devices[id(variable)], ids)
        return tf.cast(found, variable.dtype)

    def _note_reading(self, variable: keras.Variable) -> None:
        for optimizer, gradients in self._collected.applied:
            for other, gradient in zip(optimizer.built_for, gradients):
                if other is variable and gradient is not None:
                    self.read_late.add(variable.path)

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
        variables: the weights.
        parts: those of partitioned weights, and the other weights: whose values the function takes.
        seeds: the states of random number generators, whose values it takes too.
        optimizers: those that the step applies, in their order.
        changed: the variables that the step assigns to, or their parts, in the order of their first
            use.
        draws: how many numbers a step draws with each of `seeds`, once it has been traced.
    """

    def __init__(self, model: keras.Model, name: str):
        self.model = model
        self._step: Callable = getattr(model, name)
        metrics = {id(variable) for variable in model.metrics_variables}
        weights = {id(variable) for variable in model.weights}
        self._metrics = list(model.metrics_variables)  # not among `model.variables`
        self.variables = [v for v in model.variables if id(v) in weights - metrics]
        self.parts = partitions.parts_of_all(self.variables)
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
            values: those of `parts`.
            seeds: those of `seeds`.
            batch: the data.
            running: the batch's place among those of the update.
        """
        remaining = iter(values)
        parts = {id(v): [next(remaining) for _ in partitions.parts_of(v)] for v in self.variables}
        devices = {id(v): [p.value.device for p in partitions.parts_of(v)] for v in self.variables}
        others = [(v, tf.zeros(v.shape, v.dtype)) for v in self._metrics if is_summed(v)]
        others += zip(self.seeds, seeds)
        # Others may change it during the step, which must unscale with what it has scaled with.
        others += [(scale, tf.identity(scale.value)) for scale in loss_scale.scales_of(self.model)]
        start = {id(variable): value for variable, value in others}
        sources = {id(v): parts[id(v)] for v in self.trainable}
        with (
            collection.collect() as collected,
            replica.publish(running),
            compat.gradients_by_value(sources, partitions.joined),
            _Scope(others, parts, devices, collected) as scope,
        ):
            logs = self._step(_without_optionals(batch))
        self._check_read(scope.read_late, running)
        self._count_draws(running)
        changes: dict[str, tf.Tensor] = {}
        assigned: dict[str, tf.Tensor] = {}
        for variable in scope.updated.values():
            after = scope.get_current_value(variable)
            dtype = tf.as_dtype(variable.dtype)
            if not (dtype.is_floating or dtype.is_integer):
                assigned[self._key(variable)] = after
                continue
            if id(variable) in parts:
                before = partitions.whole(parts[id(variable)])
            else:
                before = start.get(id(variable), variable.value)
            own = partitions.parts_of(variable)
            for part, change in zip(own, partitions.split(after - before, own)):
                changes[self._key(part)] = change
        self.optimizers[:] = [optimizer for optimizer, _ in collected.applied]
        gradients = {
            str(number): self._by_part(optimizer, by_variable)
            for number, (optimizer, by_variable) in enumerate(collected.applied)
        }
        return Outcome(gradients, changes, assigned, logs)

    def parts_for(self, key: str) -> list[keras.Variable]:
        """The variables, or their parts, that an application's gradients are numbered by."""
        return partitions.parts_of_all(self.optimizers[int(key)].built_for)

    def _by_part(self, optimizer: Any, gradients: Sequence[Any]) -> dict[str, Any]:
        """An optimizer's gradients by the number of the variable or part; None is left out."""
        by_part: list[Any] = []
        for variable, gradient in zip(optimizer.built_for, gradients):
            own = partitions.parts_of(variable)
            by_part += [None] * len(own) if gradient is None else partitions.split(gradient, own)
        return {str(i): g for i, g in enumerate(by_part) if g is not None}

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
