"""Keras' optimizers: how they apply gradients, find variables and read the learning rate."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.partitions import whole_of
from tfdist.compat.registry import BOTH, KERAS, READ, REPLACED, WRITTEN, touch
from tfdist.compat.sharded_weights import stored
from tfdist.structures import Structure, Variable

_BASE = "keras.src.optimizers.base_optimizer:BaseOptimizer"
_TENSORFLOW = "keras.src.backend.tensorflow.optimizer:TFOptimizer"

_applying = threading.local()
# Optimizers that were given reduced gradients. Their updates may run in another thread.
_given_reduced: weakref.WeakSet = weakref.WeakSet()

_REDUCED: dict[str, str] = {
    "why": "only `Optimizer.apply` does all that an optimizer does (Nadam's running product, EMA, "
    "constraints, weight decay). But it reduces the gradients after it has clipped them",
    "versions": KERAS,
    "instead": "Keras 2's argument `skip_gradients_aggregation`",
}
_APPLY = touch(_BASE, "apply", REPLACED, "self", "grads", "trainable_variables", **_REDUCED)
_REDUCE = touch(
    *(_TENSORFLOW, "_all_reduce_sum_gradients", REPLACED, "self", "grads_and_vars"), **_REDUCED
)
_EMA: dict[str, str] = {
    "why": "in Keras' TensorFlow backend this method updates all replicas at once. Keras calls it "
    "inside a condition, where TensorFlow forbids this. The base class updates only the running "
    "replica's copy",
    "versions": BOTH,
    "instead": "an EMA that is updated in replica context",
}
_NAME_OF_EMA = "_overwrite_model_variables_with_average_value"
_OVERWRITE = touch(_TENSORFLOW, _NAME_OF_EMA, REPLACED, "self", "trainable_variables", **_EMA)
_OVERWRITE_LOCALLY = touch(_BASE, _NAME_OF_EMA, READ, "self", "trainable_variables", **_EMA)
_ADDED: dict[str, str] = {
    "why": "TensorFlow adds sparse rows with the same number in the order of its threads, so the "
    "replicas' weights would differ in their last bits",
    "versions": KERAS,
    "instead": "`scatter_add` and `scatter_sub` that add in one order",
}
_ASSIGN_ADD = touch(_TENSORFLOW, "assign_add", REPLACED, "self", "variable", "value", **_ADDED)
_ASSIGN_SUB = touch(_TENSORFLOW, "assign_sub", REPLACED, "self", "variable", "value", **_ADDED)


@contextlib.contextmanager
def applying_reduced_gradients() -> Iterator[None]:
    """In this thread, Keras optimizers treat their gradients as summed over replicas already.

    Of several replicas each one then adds the same rows in the same order.
    """
    _applying.active = True
    try:
        yield
    finally:
        _applying.active = False


def hook_apply(hook: Callable[[keras.optimizers.Optimizer, Any, Any], Any]) -> None:
    """Makes optimizers apply `hook(optimizer, gradients, variables)` instead of `gradients`.

    `variables` is None for those that the optimizer was built for. Inside
    `applying_reduced_gradients` the hook is not called.
    """

    def make(apply: Callable) -> Callable:
        # The hook comes first, as it may raise a clear error. In a step that runs as a function,
        # Keras' own code would fail in other ways before it.
        @functools.wraps(apply)
        def apply_with_hook(
            self: keras.optimizers.Optimizer,
            grads: Structure,
            trainable_variables: Structure = None,
        ) -> Any:
            if trainable_variables is not None:
                trainable_variables = list(trainable_variables)
            if not getattr(_applying, "active", False):
                grads = hook(self, grads, trainable_variables)
            return apply(self, grads, trainable_variables)

        return apply_with_hook

    _APPLY.replace(make)


def _reduce_unless_reduced(reduce_gradients: Callable) -> Callable:
    @functools.wraps(reduce_gradients)
    def _all_reduce_sum_gradients(
        self: keras.optimizers.Optimizer, grads_and_vars: Structure
    ) -> Any:
        if getattr(_applying, "active", False):
            _given_reduced.add(self)
            return list(grads_and_vars)
        return reduce_gradients(self, grads_and_vars)

    return _all_reduce_sum_gradients


def _each_row_once(assign: Callable) -> Callable:
    @functools.wraps(assign)
    def assign_each_row_once(
        self: keras.optimizers.Optimizer, variable: Variable, value: tf.Tensor | tf.IndexedSlices
    ) -> None:
        if (
            isinstance(value, tf.IndexedSlices)
            and self in _given_reduced
            and tf.distribute.get_strategy().num_replicas_in_sync > 1
        ):
            value = _without_repetition(tf.cast(value, variable.dtype))
        assign(self, variable, value)

    return assign_each_row_once


def _without_repetition(rows: tf.IndexedSlices) -> tf.IndexedSlices:
    """The same rows, those with equal numbers added up."""
    numbers, places = tf.unique(rows.indices)
    values = tf.math.unsorted_segment_sum(rows.values, places, tf.size(numbers))
    return tf.IndexedSlices(values, numbers, rows.dense_shape)


def _overwrite_locally(overwrite: Callable) -> Callable:
    @functools.wraps(overwrite)
    def _overwrite_model_variables_with_average_value(
        self: keras.optimizers.Optimizer, variables: Structure
    ) -> None:
        if getattr(_applying, "active", False):
            _OVERWRITE_LOCALLY.get()(self, variables)
        else:
            overwrite(self, variables)

    return _overwrite_model_variables_with_average_value


_POSITIONS: dict[str, str] = {
    "why": "Keras looks up variables here, even in an optimizer that builds nothing itself",
    "versions": KERAS,
    "instead": "a public way to name the variables that an optimizer is for",
}
_INDICES = touch(_BASE, "_trainable_variables_indices", WRITTEN, **_POSITIONS)
_VARIABLES = touch(_BASE, "_trainable_variables", WRITTEN, **_POSITIONS)
_KEY = touch(
    *(_TENSORFLOW, "_var_key", REPLACED, "self", "variable"),
    why="for a part of a partitioned variable, the optimizer must find the state of the whole "
    "variable",
    versions=KERAS,
    instead="an optimizer that can be asked for the place of a variable",
)


class IndexedOptimizer(keras.optimizers.Optimizer):
    """An optimizer that knows its variables by their positions, as Keras' own do."""

    def _set_built_for(self, variables: list[keras.Variable]) -> None:
        indices = _INDICES.of(self)
        for index, variable in enumerate(variables):
            indices[self._var_key(variable)] = index
        _VARIABLES.of(self)
        # Bypasses Keras' tracking of attributes: it would count the variables as optimizer state.
        self.__dict__[_VARIABLES.name] = list(variables)
        self.built = True

    def _index_of(self, variable: keras.Variable) -> int:
        """The position of `variable`; -1 if the optimizer was not built for `variable`."""
        return _INDICES.of(self).get(self._var_key(variable), -1)

    def keras_variables(
        self, given: Sequence[Variable], known: Sequence[keras.Variable]
    ) -> list[Variable]:
        """`given`, but each `tf.Variable` as the one of `known` that has it.

        A tape's `watched_variables` are such `tf.Variable`s.
        """
        of_key = {self._var_key(variable): variable for variable in known}
        return [
            one if isinstance(one, keras.Variable) else of_key.get(self._var_key(one), one)
            for one in given
        ]

    @property
    def built_for(self) -> list[keras.Variable]:
        """The trainable variables that the optimizer was built for, in their order."""
        return variables_to_build(self)


def variables_to_build(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The variables that a built `optimizer` was built for."""
    return list(_VARIABLES.of(optimizer))


def _key_of_whole(original: Callable) -> Callable:
    @functools.wraps(original)
    def _var_key(self: keras.optimizers.Optimizer, variable: Variable) -> Any:
        if isinstance(variable, keras.Variable):
            whole: keras.Variable = getattr(variable, "whole", variable)
            return original(self, whole_of(stored(whole)))
        return original(self, whole_of(variable))

    return _var_key


_WEIGHT_DECAY = touch(
    *(_BASE, "_apply_weight_decay", READ, "self", "variables"),
    why="some optimizers have their own rule for weight decay (Muon), but a wrapper inherits "
    "Keras' rule",
    versions=KERAS,
    instead="a public method",
)


def apply_weight_decay(
    optimizer: keras.optimizers.Optimizer, variables: list[keras.Variable]
) -> None:
    """Decays `variables` by the rule of `optimizer`; some optimizers have their own (Muon)."""
    _WEIGHT_DECAY.of(optimizer)(variables)


_RATE = touch(
    *(_BASE, "_get_current_learning_rate", REPLACED, "self"),
    why="a stale gradient should count less, but Adam would undo a scaling of the gradient",
    versions=KERAS,
    instead="a learning rate as an argument of `Optimizer.apply`",
)


_LEARNING_RATE = touch(
    *(_BASE, "_learning_rate", READ),
    why="parameter servers tell each other the learning rate. The public attribute would compute a "
    "schedule, and look like a number",
    versions=KERAS,
    instead="a public attribute for the variable or schedule",
)


def rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """The variable of the learning rate, or its schedule."""
    return _LEARNING_RATE.of(optimizer)


@contextlib.contextmanager
def scaled_learning_rate(factor: tf.Tensor) -> Iterator[None]:
    """In this thread, Keras optimizers update with their learning rate times `factor`."""
    _applying.factor = factor
    try:
        yield
    finally:
        _applying.factor = None


def _scaled_rate(original: Callable) -> Callable:
    @functools.wraps(original)
    def _get_current_learning_rate(self: keras.optimizers.Optimizer) -> Any:
        rate = original(self)
        factor = getattr(_applying, "factor", None)
        if factor is None:
            return rate
        rate = tf.convert_to_tensor(rate)
        return rate * tf.cast(factor, rate.dtype)

    return _get_current_learning_rate


def install() -> None:
    """Lets optimizers apply reduced gradients, scale their rate, and find parts of variables."""
    _REDUCE.replace(_reduce_unless_reduced)
    _OVERWRITE.replace(_overwrite_locally)
    _ASSIGN_ADD.replace(_each_row_once)
    _ASSIGN_SUB.replace(_each_row_once)
    _RATE.replace(_scaled_rate)
    _KEY.replace(_key_of_whole)
