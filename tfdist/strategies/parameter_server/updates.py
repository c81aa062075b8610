"""What the chief runs on the parameter servers: one update after the other.

As updates are made one at a time, counters are exact, and the values that a worker reads belong
together: they are those after an update, which its functions return without copying them (a
variable of which a value is held elsewhere is copied when it changes).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _compat
from tfdist.stages import loss_scale
from tfdist.stages.weighting import weigh
from tfdist.staleness import Policies
from tfdist.strategies.parameter_server.functional import FunctionalStep

Gradients = dict[str, dict[str, Any]]
Changes = dict[str, tf.Tensor]


class Updates:
    """Applies what steps give.

    Args:
        strategy: the strategy.
        step: the step, which knows the variables by their numbers.
        policies: what is done about stale gradients.
    """

    def __init__(self, strategy: tf.distribute.Strategy, step: FunctionalStep, policies: Policies):
        self._strategy = strategy
        self._step = step
        self._policies = policies
        self._states: dict[int, Any] = {}
        function = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        self.values = function(self._values)
        self.update = function(self._update)
        self.change = function(self._change_only)
        self.count = function(self._count)
        self._finite = function(_are_finite)
        self._scaled = function(_scaled)
        self.add = function(functools.partial(add, step=step))

    def _values(self) -> list[tf.Tensor]:
        """The values of the step's variables, where the variables are."""
        values = []
        for variable in self._step.variables:
            # The whole of it there: what is read elsewhere would travel there and back.
            with tf.device(variable.value.device):
                values.append(tf.identity(tf.convert_to_tensor(variable.value)))
        return values

    def _update(
        self,
        gradients: Gradients,
        changes: Changes,
        assigned: Changes,
        factor: tf.Tensor,
        read: Sequence[tf.Tensor],
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """One update.

        Args:
            gradients: as in `Outcome`.
            changes: as there.
            assigned: as there.
            factor: float32 scalar, what the learning rate is multiplied by.
            read: the values that the gradients were computed from; empty where no policy asks.

        Returns:
            The new values of the variables, and the results of the metrics.
        """

        def in_replica() -> None:
            for key, by_variable in gradients.items():
                optimizer = self._step.optimizers[int(key)]
                if self._policies.compensates:
                    by_variable = self._compensated(key, by_variable, read)
                ordered = [by_variable.get(str(i)) for i in range(len(optimizer.built_for))]
                with _compat.scaled_learning_rate(factor):
                    optimizer.apply_collected(ordered)
            self._change(changes, assigned)

        if self._policies.compensates:
            self._make_states(gradients)
        self._strategy.run(in_replica)
        return self._values(), self._step.model.get_metrics_result()

    def _change_only(self, changes: Changes, assigned: Changes) -> dict[str, tf.Tensor]:
        """Makes the changes of a step without its gradients; gives the metrics' results."""
        self._strategy.run(self._change, args=(changes, assigned))
        return self._step.model.get_metrics_result()

    def _count(self, changes: Changes) -> dict[str, tf.Tensor]:
        """Only counts a step in the metrics, whose results it gives."""
        metrics = {id(variable) for variable in self._step.model.metrics_variables}
        of_metrics = {
            key: change
            for key, change in changes.items()
            if id(self._step.changed[int(key)]) in metrics
        }
        self._strategy.run(self._change, args=(of_metrics, {}))
        return self._step.model.get_metrics_result()

    def are_finite(self, gradients: Gradients) -> bool:
        """Whether all are finite; not looked at where no loss is scaled."""
        return not self._loss_scalers() or bool(self._finite(gradients))

    def note_overflow(self) -> None:
        """Lowers loss scales."""
        for scaler in self._loss_scalers():
            loss_scale.after_overflow(scaler)

    def note_finite(self) -> None:
        """Counts finite gradients, after some of which loss scales rise."""
        for scaler in self._loss_scalers():
            loss_scale.after_finite_step(scaler)

    def _loss_scalers(self) -> list[keras.optimizers.LossScaleOptimizer]:
        inner = {id(o): o.unwrap() for o in self._step.optimizers}.values()
        return [o for o in inner if isinstance(o, keras.optimizers.LossScaleOptimizer)]

    def scaled(self, gradients: Gradients, factor: float) -> Gradients:
        """The gradients times a number."""
        return gradients if factor == 1.0 else self._scaled(gradients, tf.constant(factor))

    def _change(self, changes: Changes, assigned: Changes) -> None:
        for key, change in changes.items():
            self._step.changed[int(key)].value.assign_add(change)
        for key, value in assigned.items():
            self._step.changed[int(key)].value.assign(value)

    def _compensated(
        self, key: str, gradients: dict[str, Any], read: Sequence[tf.Tensor]
    ) -> dict[str, Any]:
        variables = self._step.optimizers[int(key)].built_for
        before = {id(v): value for v, value in zip(self._step.variables, read)}
        compensated = {}
        for place, gradient in gradients.items():
            variable = variables[int(place)]
            with tf.device(variable.value.device):
                moved = tf.convert_to_tensor(variable.value) - before[id(variable)]
                compensated[place] = self._policies.compensate(
                    tf.convert_to_tensor(gradient), moved, self._states[id(variable)]
                )
        return compensated

    def _make_states(self, gradients: Gradients) -> None:
        variables = [v for key in gradients for v in self._step.optimizers[int(key)].built_for]
        with tf.init_scope(), self._strategy.scope():
            for variable in variables:
                if id(variable) not in self._states:
                    self._states[id(variable)] = self._policies.init(variable.value)


def on_its_device(variable: keras.Variable, value: Any) -> Any:
    """`value`, a tensor or `tf.IndexedSlices`, on the device of `variable`."""
    with tf.device(variable.value.device):
        return tf.nest.map_structure(tf.identity, value, expand_composites=True)


def add(
    outcomes: Sequence[tuple[Gradients, Changes]], step: FunctionalStep | None = None
) -> tuple[Gradients, Changes]:
    """The sums of gradients and changes.

    What is there once only, such as the gradients of an optimizer that some steps do not apply, is
    taken as it is.

    Args:
        outcomes: gradients and changes.
        step: whose variables' devices the sums are made on; None for the present device.
    """
    gradients: Gradients = {}
    changes: Changes = {}
    for more, change in outcomes:
        for key, by_variable in more.items():
            total = gradients.setdefault(key, {})
            variables = step and step.optimizers[int(key)].built_for
            for place, gradient in by_variable.items():
                with _device_of(variables and variables[int(place)]):
                    total[place] = _sum(total.get(place), gradient)
        for key, value in change.items():
            with _device_of(step and step.changed[int(key)]):
                changes[key] = _sum(changes.get(key), value)
    return gradients, changes


def _device_of(variable: keras.Variable | None) -> contextlib.AbstractContextManager:
    return tf.device(variable.value.device) if variable is not None else contextlib.nullcontext()


def _sum(total: Any, value: Any) -> Any:
    if total is None:
        return value
    if isinstance(total, tf.IndexedSlices) and isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([total.values, value.values], axis=0),
            tf.concat([total.indices, value.indices], axis=0),
            value.dense_shape,
        )
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(value)


def _are_finite(gradients: Gradients) -> tf.Tensor:
    dense = [g for by_variable in gradients.values() for g in by_variable.values()]
    return loss_scale.all_finite(dense)


def _scaled(gradients: Gradients, factor: tf.Tensor) -> Gradients:
    return {
        key: {place: weigh(g, factor) for place, g in by_variable.items()}
        for key, by_variable in gradients.items()
    }
