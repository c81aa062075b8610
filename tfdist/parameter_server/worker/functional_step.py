"""A step of a Keras model as a function: from values and a batch to gradients and changes.

A worker may die in the middle of a step, and a gradient may be dropped. So a step changes nothing.
It takes the values of the variables, and returns what is to be applied later, once. Keras'
`StatelessScope` intercepts every assignment to a variable in the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from tfdist import compat
from tfdist.optimizer.distributed import DistributedOptimizer
from tfdist.parameter_server import partitions
from tfdist.parameter_server.gradients import Changes, Outcome
from tfdist.parameter_server.worker.step_scope import StepScope
from tfdist.step import collection, loss_scale, replica
from tfdist.structures import Gradient, Structure


class FunctionalStep:
    """`train_step` or `test_step` of a model as a function.

    Args:
        model: the built and compiled model.
        name: the name of the step.
        copies: whether the function takes the values of all weights. Otherwise it reads the rows of
            large tables from the variables themselves.

    Attributes:
        variables: the weights.
        parts: the parts of partitioned weights, and the other weights.
        copied: the numbers of those parts whose values the function takes.
        seeds: the states of random number generators. The function takes their values too.
        optimizers: the optimizers that the step applies, in order.
        changed: the variables that the step assigns to, or their parts, in the order of their first
            use.
        draws: how many numbers a step draws with each of `seeds`; known once a step was traced.
        by_rows: the ids of the weights of which the step reads single rows; known once a step was
            traced.
    """

    def __init__(self, model: keras.Model, name: str, copies: bool = True):
        self.model = model
        self._step: Callable = getattr(model, name)
        metrics = {id(variable) for variable in model.metrics_variables}
        weights = {id(variable) for variable in model.weights}
        self._metrics = list(model.metrics_variables)  # not among `model.variables`
        self.variables = [v for v in model.variables if id(v) in weights - metrics]
        self.parts = partitions.parts_of_all(self.variables)
        copied = [copies or partitions.is_copied(v) for v in self.variables]
        of_parts = [c for c, v in zip(copied, self.variables) for _ in partitions.parts_of(v)]
        self.copied = [place for place, is_copied in enumerate(of_parts) if is_copied]
        self.seeds = [v for v in model.variables if id(v) not in weights | metrics]
        self.optimizers: list[DistributedOptimizer] = []
        self.changed: list[keras.Variable] = []
        self.draws = [0] * len(self.seeds)
        self.by_rows: set[int] = set()

    @property
    def trainable(self) -> list[keras.Variable]:
        """The trainable ones among `variables`."""
        return [v for v in self.variables if v.trainable]

    def __call__(
        self,
        values: Sequence[tf.Tensor | None],
        seeds: Sequence[tf.Tensor],
        batch: Structure,
        running: replica.ReplicaStep,
    ) -> Outcome:
        """Traces one step.

        Args:
            values: the values of the attribute `parts`; None for those that are not `copied`.
            seeds: the values of the attribute `seeds`.
            batch: the data.
            running: the batch's place among the batches of the update.
        """
        read = (p.value if value is None else value for p, value in zip(self.parts, values))
        parts = {id(v): [next(read) for _ in partitions.parts_of(v)] for v in self.variables}
        devices = {id(v): [p.value.device for p in partitions.parts_of(v)] for v in self.variables}
        others = [(v, tf.zeros(v.shape, v.dtype)) for v in self._metrics if is_summed(v)]
        others += zip(self.seeds, seeds)
        # Others may change the loss scale during the step. The step must unscale with the value
        # that it has scaled with.
        others += [(scale, tf.identity(scale.value)) for scale in loss_scale.scales_of(self.model)]
        start = {id(variable): value for variable, value in others}
        sources = {id(v): parts[id(v)] for v in self.trainable}
        with (
            collection.collect(collection.Collected()) as collected,
            replica.publish(running),
            compat.gradients_by_value(sources),
            StepScope(others, parts, devices, collected) as scope,
        ):
            logs = self._step(_without_optionals(batch))
        self.by_rows |= scope.by_rows
        self._check_read(scope.read_late, running)
        self._count_draws(running)
        changes: Changes = {}
        assigned: Changes = {}
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
        """The variables or parts of an optimizer's application, in the order of their numbers."""
        return partitions.parts_of_all(self.optimizers[int(key)].built_for)

    def _by_part(
        self, optimizer: DistributedOptimizer, gradients: Sequence[Gradient | None]
    ) -> dict[str, Gradient]:
        """An optimizer's gradients, by the number of the variable or part, without None."""
        by_part: list[Gradient | None] = []
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
        drawn = [id(seed) for seed in running.notes.drawn]
        self.draws = [drawn.count(id(seed)) for seed in self.seeds]

    def _key(self, variable: keras.Variable) -> str:
        """The number of `variable` among the variables that the step assigns to, as text."""
        for place, other in enumerate(self.changed):
            if other is variable:
                return str(place)
        self.changed.append(variable)
        return str(len(self.changed) - 1)


def is_summed(variable: keras.Variable) -> bool:
    """Whether steps only add to the variable, as they do to the variables of metrics."""
    return variable.aggregation == "sum"


def _without_optionals(batch: Structure) -> Structure:
    """The batch as Keras' trainer hands it to a step: None for an absent optional."""
    return tf.nest.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, batch
    )
