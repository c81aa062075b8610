"""What the chief runs on the parameter servers: one update after the other.

Updates are made one at a time. So counters are exact, and the values that a worker reads belong
together: they are the values after one update. Reading copies nothing: a variable is copied only
when it changes while somebody holds its value.

The results of a function that runs in the chief travel through the chief, even if they are made and
used elsewhere. So functions whose results stay on the parameter servers run there, one on each.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfdist.parameter_server.chief.arrived import mean_of_arrived
from tfdist.parameter_server.chief.finite_gradients import finite_by_path
from tfdist.parameter_server.chief.partition_updates import constrain
from tfdist.parameter_server.chief.placement import where_the_largest_input_is
from tfdist.parameter_server.contracts import ChiefStrategy
from tfdist.parameter_server.devices import CHIEF, on_its_device
from tfdist.parameter_server.flat import NONE, FlatVariables
from tfdist.parameter_server.gradients import Changes, Gradients, add, are_finite, scaled
from tfdist.parameter_server.packing import joined, on_device, places_of, unpack_there
from tfdist.parameter_server.reading import Reading
from tfdist.parameter_server.together import applying, vectors_of
from tfdist.parameter_server.worker.functional_step import FunctionalStep
from tfdist.staleness import Policies
from tfdist.step.loss_scale import LossScale
from tfdist.structures import Gradient, Structure


class Updated(NamedTuple):
    """The result of an update.

    Attributes:
        results: the results of the metrics.
        applied: a bool scalar, whether any gradients were applied. Where no loss is scaled,
            gradients are always applied, and None stands for that.
        values: the values of the weights that may have changed, by the keys of `packing`.
    """

    results: dict[str, tf.Tensor]
    applied: tf.Tensor | None
    values: dict[str, tf.Tensor]


class Updates:
    """Applies what workers have computed.

    Args:
        strategy: the strategy.
        step: the step; tells which variable has which number.
        policies: what is done about stale gradients.
        reading: how the values of weights travel.

    Attributes:
        reading: the same.
    """

    def __init__(
        self, strategy: ChiefStrategy, step: FunctionalStep, policies: Policies, reading: Reading
    ):
        self._strategy = strategy
        self._step = step
        self.reading = reading
        self._policies = policies
        self._states: dict[int, Structure] = {}
        # With one parameter server, a function runs there as a whole: each result of an operation
        # that another process needs is a message of its own.
        self._home = CHIEF if len(strategy.ps_devices) > 1 else strategy.ps_devices[0]
        self.forget_traces()

    def forget_traces(self) -> None:
        """Lets all functions be traced anew, with other variables behind the model's."""
        function = functools.partial(tf.function, autograph=False, reduce_retracing=True)
        self._readers: dict[str, Callable[[], dict[str, tf.Tensor]]] = {}
        self._function = function(self._update)
        self._change_only = function(self._changed)
        self._count_only = function(self._counted)
        self.finite_by_path = function(functools.partial(finite_by_path, step=self._step))
        self._finite, self._scaled, self._add = map(function, (are_finite, scaled, add))
        self._mean = function(functools.partial(mean_of_arrived, step=self._step))

    def values(self, keys: Iterable[str]) -> dict[str, tf.Tensor]:
        """The values of the step's variables and parts with these keys, on their devices."""
        found: dict[str, tf.Tensor] = {}
        for device, there in self.reading.by_device(keys).items():
            reader = self._readers.setdefault(
                " ".join(there), tf.function(functools.partial(self.read, there))
            )
            with tf.device(device):
                found.update(reader())
        return found

    def read(self, keys: Sequence[str], flat: FlatVariables = NONE) -> dict[str, tf.Tensor]:
        """As `values`, on the present device of a graph; `flat` are in use there."""
        parts = self._step.parts
        return {
            key: joined(flat.values([parts[place] for place in places_of(key)])) for key in keys
        }

    def add(self, outcomes: Sequence[tuple[Gradients, Changes]]) -> tuple[Gradients, Changes]:
        """The sums of gradients and changes, on their own devices; see `gradients.add`."""
        return self._on_each(outcomes, self._add)

    def mean(
        self, outcomes: Sequence[tuple[Gradients, Changes]], arrived: int, factor: float
    ) -> tuple[Gradients, Changes]:
        """What the first `arrived` ones amount to, on its own devices; see `mean_of_arrived`."""
        counts = tf.constant([float(place < arrived) for place in range(len(outcomes))])
        given = {"counts": counts, "factor": tf.constant(factor)}
        return self._on_each(outcomes, functools.partial(self._mean, **given))

    def _on_each(
        self, outcomes: Sequence[tuple[Gradients, Changes]], function: Callable
    ) -> tuple[Gradients, Changes]:
        gradients: Gradients = {}
        changes: Changes = {}
        for device in self._strategy.ps_devices:
            here = [on_device(device, self._step, *outcome) for outcome in outcomes]
            with tf.device(device):
                more, change = function(here)
            for key, by_variable in more.items():
                gradients.setdefault(key, {}).update(by_variable)
            changes.update(change)
        return gradients, changes

    def update(
        self,
        gradients: Gradients,
        changes: Changes,
        assigned: Changes,
        factor: float,
        read: dict[str, tf.Tensor],
    ) -> Updated:
        """Makes one update.

        Args:
            gradients: as in `Outcome`.
            changes: as in `Outcome`.
            assigned: as in `Outcome`.
            factor: what the learning rate is multiplied by.
            read: the values that the gradients were computed from; empty where no policy needs
                them.
        """
        if self._policies.compensates:
            self._make_states(gradients)
        number = tf.constant(factor)
        with tf.device(self._home):
            updated = self._function(gradients, changes, assigned, number, read)
        if self._home == CHIEF:
            return updated._replace(values=self.values(self.reading.changing))
        return updated

    def change(self, changes: Changes, assigned: Changes) -> dict[str, tf.Tensor]:
        """Makes a work item's changes but uses no gradients. Returns the metrics' results."""
        with tf.device(self._home):
            return self._change_only(changes, assigned)

    def count(self, changes: Changes) -> dict[str, tf.Tensor]:
        """Only counts a work item in the metrics. Returns the metrics' results."""
        with tf.device(self._home):
            return self._count_only(changes)

    def _update(
        self,
        gradients: Gradients,
        changes: Changes,
        assigned: Changes,
        factor: tf.Tensor,
        read: dict[str, tf.Tensor],
    ) -> Updated:
        results, applied = self.in_graph(gradients, changes, assigned, factor, read)
        here = self.reading.by_device(self.reading.changing).get(self._home, [])
        return Updated(results, applied, self.read(here))

    def in_graph(
        self,
        gradients: Gradients,
        changes: Changes,
        assigned: Changes,
        factor: tf.Tensor,
        read: dict[str, tf.Tensor],
        context: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
        flat: FlatVariables = NONE,
    ) -> tuple[dict[str, tf.Tensor], tf.Tensor | None]:
        """Makes an update in the graph that is being traced. Returns results, and if it was made.

        See `update` for the arguments, and `Updated` for what is returned. In the thread in which
        optimizers are applied, `context()` is entered. `flat` are flat variables that are in use.
        """

        def in_replica() -> list[tf.Tensor]:
            finite = []
            with context(), tf.compat.v1.device(where_the_largest_input_is):
                for key, packed in gradients.items():
                    optimizer = self._step.optimizers[int(key)]
                    parts = self._step.parts_for(key)
                    by_variable = unpack_there(packed, parts)
                    if self._policies.compensates:
                        by_variable = self._compensated(key, by_variable, read)
                    ordered = [
                        on_its_device(variable, by_variable[str(i)])
                        if str(i) in by_variable
                        else None
                        for i, variable in enumerate(parts)
                    ]
                    # Where a policy has changed the gradients, the vectors have the old ones.
                    is_old = self._policies.compensates
                    vectors = {} if is_old else vectors_of(packed, ordered)
                    with applying(factor, flat, vectors):
                        finite.append(optimizer.apply_collected(ordered, parts))
                    constrain(optimizer.built_for)
                self._change(changes, assigned)
            return finite

        finite = self._strategy.run(in_replica)
        applied = None if None in finite else tf.reduce_any(finite)
        return self._step.model.get_metrics_result(), applied

    def _changed(self, changes: Changes, assigned: Changes) -> dict[str, tf.Tensor]:
        self._strategy.run(self._change, args=(changes, assigned))
        return self._step.model.get_metrics_result()

    def _counted(self, changes: Changes) -> dict[str, tf.Tensor]:
        metrics = {id(variable) for variable in self._step.model.metrics_variables}
        of_metrics = {
            key: change
            for key, change in unpack_there(changes, self._step.changed).items()
            if id(self._step.changed[int(key)]) in metrics
        }
        self._strategy.run(self._change, args=(of_metrics, {}))
        return self._step.model.get_metrics_result()

    def are_finite(self, gradients: Gradients) -> bool:
        """Whether all gradients are finite. This is not checked where no loss is scaled."""
        return not self._loss_scales() or bool(self._finite(gradients))

    def note_overflow(self) -> None:
        """Lowers loss scales."""
        for scale in self._loss_scales():
            scale.note(is_finite=False)

    def note_finite(self) -> None:
        """Counts finite gradients: after enough of them, loss scales rise."""
        for scale in self._loss_scales():
            scale.note(is_finite=True)

    def _loss_scales(self) -> list[LossScale]:
        """The step's optimizers that scale the loss."""
        scales = [LossScale(o) for o in {id(o): o.unwrap() for o in self._step.optimizers}.values()]
        return [scale for scale in scales if scale.is_used]

    def scaled(self, gradients: Gradients, factor: float) -> Gradients:
        """The gradients times a number."""
        if factor == 1.0:
            return gradients
        product: Gradients = {}
        for device in self._strategy.ps_devices:
            here, _ = on_device(device, self._step, gradients, {})
            with tf.device(device):
                for key, by_variable in self._scaled(here, tf.constant(factor)).items():
                    product.setdefault(key, {}).update(by_variable)
        return product

    def _change(self, changes: Changes, assigned: Changes) -> None:
        changed = self._step.changed
        for key, change in unpack_there(changes, changed).items():
            changed[int(key)].value.assign_add(change)
        for key, value in unpack_there(assigned, changed).items():
            changed[int(key)].value.assign(value)

    def _compensated(
        self, key: str, gradients: dict[str, Gradient], read: dict[str, tf.Tensor]
    ) -> dict[str, Gradient]:
        variables, parts = self._step.parts_for(key), self._step.parts
        values = unpack_there(read, parts)
        before = {id(part): values[str(place)] for place, part in enumerate(parts)}
        compensated: dict[str, Gradient] = {}
        for place, gradient in gradients.items():
            variable = variables[int(place)]
            with tf.device(variable.value.device):
                moved = tf.convert_to_tensor(variable.value) - before[id(variable)]
                compensated[place] = self._policies.compensate(
                    tf.convert_to_tensor(gradient), moved, self._states[id(variable)]
                )
        return compensated

    def _make_states(self, gradients: Gradients) -> None:
        variables = [v for key in gradients for v in self._step.parts_for(key)]
        with tf.init_scope(), self._strategy.scope():
            for variable in variables:
                if id(variable) not in self._states:
                    with self._strategy.extended.colocate_vars_with(variable.value):
                        self._states[id(variable)] = self._policies.init(variable.value)
