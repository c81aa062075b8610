"""Compiles with XLA what each replica computes in a step of Keras (`jit_compile=True`).

XLA cannot compile an exchange between replicas. So what a replica computes up to its gradients is
one function that XLA compiles. The function changes no variable that the replicas have in common.
It returns the gradients, and the new values of such variables. Outside of it, these values are
assigned, and the optimizers are applied as in a step that is not compiled.

Some steps need the other replicas before they have all gradients: synchronized BatchNormalization,
a loss that is divided by a sum over all replicas, a step that uses weights which it has updated.
There XLA compiles what lies between the exchanges, as far as it can.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.optimizers import Optimizer

from tfdist import compat
from tfdist.engines.current import ExchangeRefusedError, refusing_exchanges
from tfdist.step import collection, loss_sums, loss_tags, replica
from tfdist.step.fixed_rows import may_be_fixed
from tfdist.step.logs import is_number
from tfdist.step.rows import are_summed
from tfdist.step.unique_rows import are_unique
from tfdist.structures import Structure

_warned_of: weakref.WeakSet[keras.Model] = weakref.WeakSet()


def compiled(fn: Callable, model: keras.Model, name: str) -> Callable:
    """The step `fn` of a replica, compiled with XLA.

    Args:
        fn: a step of `model`.
        model: the model.
        name: "train_step", "test_step" or "predict_step".
    """

    def step(*args: Structure, **kwargs: Structure) -> Structure:
        running = replica.current()
        if running is None or tf.executing_eagerly():
            return fn(*args, **kwargs)
        synchronized = (getattr(x, "synchronized", False) for x in compat.flatten_layers(model))
        if name == "train_step" and any(synchronized):
            _warn(model, name, "it has synchronized layers")
            return _between_exchanges(fn, args, kwargs)
        notes = vars(running.notes)
        before = {key: copy.copy(value) for key, value in notes.items()}
        try:
            return _as_a_whole(functools.partial(fn, **kwargs), args, name, running)
        except RuntimeError as error:
            refused = isinstance(error, ExchangeRefusedError)
            if not refused and not compat.is_refused_meeting(error):
                raise
            _warn(model, name, str(error) if refused else "the replicas meet in it")
        notes.update(before)
        return _between_exchanges(fn, args, kwargs)

    return step


def _warn(model: keras.Model, name: str, reason: str) -> None:
    """Says, once, that what XLA cannot compile of a step of `model` raises no error."""
    if model not in _warned_of:
        _warned_of.add(model)
        tf.get_logger().warning(
            "tfdist: XLA compiles `%s` of the model %s in parts, as the step needs the other "
            "replicas before it has all gradients (%s). What XLA cannot compile of it runs without "
            "XLA, and raises no error.",
            name,
            model.name,
            reason,
        )


@dataclasses.dataclass
class _Postponed(collection.Collected):
    """The updates that the step asks for, which are made after the compiled function.

    Attributes:
        graph: of the compiled function.
        updates: each optimizer with its gradients and their variables.
        changes: the variables that these updates change, by their ids.
        begin: where the operations of the graph begin that follow the first update.
    """

    graph: tf.Graph | None = None
    begin: int | None = None
    updates: list[tuple[Any, list, list[keras.Variable]]] = dataclasses.field(default_factory=list)
    changes: dict[int, keras.Variable] = dataclasses.field(default_factory=dict)

    def takes(self, optimizer: Optimizer, gradients: list, variables: list) -> bool:
        """Keeps an update for later."""
        self.check_graph("an optimizer is applied")
        # Outside of the function nobody sees where the rows come from.
        if not are_summed(optimizer.unwrap()):
            if any(map(may_be_fixed, gradients)):
                raise ExchangeRefusedError("rows of a gradient are the same for all samples")
            if any(map(are_unique, gradients)):
                raise ExchangeRefusedError("rows of a gradient are unique within the batch")
        if self.begin is None and self.graph is not None:
            self.begin = len(self.graph.get_operations())
        self.updates.append((optimizer, gradients, variables))
        given = [v for v, gradient in zip(variables, gradients) if gradient is not None]
        state = [v for v in optimizer.variables if v.name != "learning_rate"]
        self.changes |= {id(variable): variable for variable in (*given, *state)}
        return True

    def check_graph(self, what: str) -> None:
        """Raises ValueError if `what` happens in a function or a branch within the step.

        It might happen or not, or several times, and TensorFlow keeps such functions.
        """
        if tf.compat.v1.get_default_graph() is not self.graph:
            raise ValueError(
                "With `jit_compile=True` and several replicas, variables may only change in the "
                "`train_step` itself. Leave out the `@tf.function`, or compile the model with "
                f"`jit_compile=False`. Received: {what} in a function, a condition or a loop of "
                "TensorFlow within the step"
            )

    def are_used_later(self) -> bool:
        """Whether operations after the first update use variables that the updates change."""
        if self.graph is None or self.begin is None:
            return False
        handles = [variable.value.handle for variable in self.changes.values()]
        later = self.graph.get_operations()[self.begin :]
        return compat.are_captured_by(later, self.graph, handles)


class _Parts(collection.Collected):
    """Marks the operations of a step for XLA, but for those that update variables.

    Args:
        graph: the graph that is being traced.
    """

    def __init__(self, graph: tf.Graph):
        super().__init__()
        self._graph = graph
        self._first = 0

    def begin(self) -> None:
        """The operations that follow are to be compiled."""
        self._first = len(self._graph.get_operations())

    def end(self) -> None:
        """The operations that follow are not to be compiled."""
        compat.compile_where_possible(self._graph.get_operations()[self._first :])

    def takes(self, optimizer: Optimizer, gradients: list, variables: list) -> bool:
        """Updates at once."""
        self.end()
        with collection.collect(None):
            optimizer.apply(gradients, variables)
        self.begin()
        return True


class _Unchanged(keras.StatelessScope):
    """Keeps the new values of variables that the replicas have in common.

    A replica's own variables are assigned to: those of metrics, which count its samples.

    Args:
        postponed: the updates that are made later.
    """

    def __init__(self, postponed: _Postponed):
        super().__init__(collect_losses=True)
        self._postponed = postponed
        self.changed: dict[int, keras.Variable] = {}
        self.is_done = False

    def get_current_value(self, variable: keras.Variable) -> Any:
        """The value in the step; until the step assigns one, the variable's own."""
        self._check_not_updated(variable)
        found = super().get_current_value(variable)
        if found is not None:
            self._check_own(variable)
            return found
        with compat.outside_stateless_scope():
            return variable.value

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        """Keeps a new value, or assigns it to a variable that is the replica's own."""
        variable, value = update
        self._check_not_updated(variable)
        with compat.outside_stateless_scope():
            if variable.value.synchronization == tf.VariableSynchronization.ON_READ:
                variable.assign(value)
                return
        self._postponed.check_graph(f"{variable.path} is assigned to")
        if variable.trainable or self._postponed.updates:
            raise ExchangeRefusedError(f"the step sets {variable.path}")
        self.changed[id(variable)] = variable
        super().add_update(update)

    def _check_own(self, variable: keras.Variable) -> None:
        """Raises ExchangeRefusedError if a new value is not yet that of all replicas."""
        with compat.outside_stateless_scope():
            aggregation = variable.value.aggregation
        if not self.is_done and aggregation != tf.VariableAggregation.NONE:
            raise ExchangeRefusedError(f"the step reads {variable.path} after it has set it")

    def _check_not_updated(self, variable: keras.Variable) -> None:
        if id(variable) in self._postponed.changes:
            raise ExchangeRefusedError(f"the step uses {variable.path} after its update")


def _as_a_whole(fn: Callable, args: tuple, name: str, running: replica.ReplicaStep) -> Structure:
    """The results of the step, whose function XLA must compile.

    Raises:
        RuntimeError: when the step needs the other replicas before it has all gradients.
    """
    postponed = _Postponed()
    scope = _Unchanged(postponed)

    def computed(*args: Structure) -> tuple[Structure, list, list]:
        postponed.graph = tf.compat.v1.get_default_graph()
        with collection.collect(postponed), scope, refusing_exchanges():
            results = tf.nest.map_structure(_value, fn(*args))
            if name != "predict_step":
                results = _numbers(results, lambda log: loss_sums.as_mean(running, log))
        if compat.exchanges(postponed.graph):
            raise ExchangeRefusedError("the step exchanges values with other replicas")
        if postponed.are_used_later():
            raise ExchangeRefusedError("the step uses variables after their update")
        scope.is_done = True
        values = [scope.get_current_value(variable) for variable in scope.changed.values()]
        return results, values, [gradients for _, gradients, _ in postponed.updates]

    function = tf.function(computed, autograph=False, jit_compile=True)
    results, values, gradients = function(*args)
    for variable, value in zip(scope.changed.values(), values):
        variable.assign(value)
    for (optimizer, _, variables), of_update in zip(postponed.updates, gradients):
        optimizer.apply(of_update, variables)
    if name == "predict_step":
        return results
    # They are means over the replica's samples, which their operation does not show.
    return _numbers(results, lambda log: loss_tags.tag(log, loss_tags.LOSS))


def _value(leaf: Structure) -> Structure:
    """A variable's value in the step; anything else as it is."""
    return tf.convert_to_tensor(leaf) if isinstance(leaf, keras.Variable) else leaf


def _numbers(logs: Structure, change: Callable[[tf.Tensor], tf.Tensor]) -> Structure:
    return tf.nest.map_structure(lambda log: change(log) if is_number(log) else log, logs)


def _between_exchanges(fn: Callable, args: tuple, kwargs: dict) -> Structure:
    """The results of the step, of which XLA compiles the parts that it can."""
    graph = tf.compat.v1.get_default_graph()
    parts = _Parts(graph)
    parts.begin()
    with collection.collect(parts):
        results = fn(*args, **kwargs)
    parts.end()
    return results
