"""Several variables that a Keras optimizer updates as if they were one."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import keras
import tensorflow as tf

from tfdist.compat.registry import BOTH, KERAS, READ, REPLACED, touch
from tfdist.structures import Gradient

_TENSORFLOW = "keras.src.backend.tensorflow.optimizer:TFOptimizer"

_updating = threading.local()

_UPDATE = touch(
    *(_TENSORFLOW, "_backend_update_step", REPLACED),
    *("self", "grads", "trainable_variables", "learning_rate"),
    why="here Keras has clipped the gradients and decayed the weights, and has not yet begun with "
    "the variables, each of which takes an optimizer some 40 small operations",
    versions=KERAS,
    instead="a public method that updates several variables",
)
_DECAY = touch(
    *(_TENSORFLOW, "_apply_weight_decay", REPLACED, "self", "variables"),
    why="Keras decays each variable by itself, with operations of its own",
    versions=KERAS,
    instead="a public method that decays several variables",
)
_DECAYS = touch(
    *("keras.src.optimizers.base_optimizer:BaseOptimizer", "_use_weight_decay", READ),
    *("self", "variable"),
    why="an optimizer may leave variables out of the weight decay",
    versions=KERAS,
    instead="a public method that tells",
)
_KEY = touch(
    *(_TENSORFLOW, "_var_key", READ, "self", "variable"),
    why="an optimizer finds the state of a variable by this key",
    versions=BOTH,
    instead="an optimizer that can be asked for the state of a variable",
)

Rate: TypeAlias = "tf.Tensor | float"
Left: TypeAlias = tuple[list[Gradient], list[keras.Variable]]
UpdateFirst = Callable[
    [keras.optimizers.Optimizer, list[Gradient], list[keras.Variable], Rate], Left
]
"""Updates some of the variables, with their gradients and the learning rate. Returns the others."""

DecayFirst = Callable[[keras.optimizers.Optimizer, list[keras.Variable]], list[keras.Variable]]
"""Decays some of the variables. Returns the others."""


class OneOfMany:
    """Takes the place of a variable in an optimizer's `update_step`: several ones, in a vector.

    What is assigned reaches the variables with `write`.

    Args:
        optimizer: the optimizer.
        variables: variables of one dtype and device.
        vector: what has the values of the variables; None if the variables themselves do.
    """

    def __init__(
        self,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        vector: tf.Variable | None = None,
    ):
        self._unique_id = _KEY.of(optimizer)(variables[0])
        # In a stateless scope, a Keras variable's value may be this very object.
        self._variables = [variable.value for variable in variables]
        self._vector = vector
        self._value: tf.Tensor | None = None
        self._is_new = False
        self.dtype = tf.as_dtype(variables[0].dtype)
        self._sizes = [value.shape.num_elements() for value in self._variables]
        self.shape = tf.TensorShape([sum(self._sizes)])

    def read(self) -> tf.Tensor:
        """The values, one after the other."""
        if self._value is None and self._vector is not None:
            self._value = self._vector.read_value()
        if self._value is None:
            flat = [tf.reshape(value.read_value(), [-1]) for value in self._variables]
            self._value = tf.concat(flat, axis=0)
        return self._value

    def assign(self, value: tf.Tensor) -> None:
        """Replaces the values."""
        self._value, self._is_new = value, True

    def assign_add(self, value: tf.Tensor) -> None:
        """Adds to the values."""
        self.assign(self.read() + value)

    def assign_sub(self, value: tf.Tensor) -> None:
        """Subtracts from the values."""
        self.assign(self.read() - value)

    def write(self) -> None:
        """Assigns the variables, or the vector, what was assigned here."""
        if not self._is_new:
            return
        if self._vector is not None:
            self._vector.assign(self._value, read_value=False)
            return
        for value, part in zip(self._variables, tf.split(self._value, self._sizes)):
            value.assign(tf.reshape(part, value.shape), read_value=False)


def _as_tensor(
    value: OneOfMany, dtype: tf.DType | None = None, name: str | None = None, as_ref: bool = False
) -> tf.Tensor:
    del name, as_ref
    tensor = value.read()
    return tensor if dtype is None else tf.cast(tensor, dtype)


@contextlib.contextmanager
def updating_first(update: UpdateFirst, decay: DecayFirst) -> Iterator[None]:
    """In this thread, Keras optimizers leave variables to these functions before they begin."""
    outer = getattr(_updating, "first", None), getattr(_updating, "decay", None)
    _updating.first, _updating.decay = update, decay
    try:
        yield
    finally:
        _updating.first, _updating.decay = outer


def decays(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Whether an optimizer with weight decay lets this variable decay."""
    return bool(_DECAYS.of(optimizer)(variable))


def _with_first(original: Callable) -> Callable:
    @functools.wraps(original)
    def _backend_update_step(
        self: keras.optimizers.Optimizer,
        grads: list[Gradient],
        trainable_variables: list[keras.Variable],
        learning_rate: Rate,
    ) -> None:
        first: UpdateFirst | None = getattr(_updating, "first", None)
        if first is not None:
            variables = list(trainable_variables)
            grads, trainable_variables = first(self, list(grads), variables, learning_rate)
        if trainable_variables:
            original(self, grads, trainable_variables, learning_rate)

    return _backend_update_step


def _with_decay_first(original: Callable) -> Callable:
    @functools.wraps(original)
    def _apply_weight_decay(
        self: keras.optimizers.Optimizer, variables: list[keras.Variable]
    ) -> None:
        decay: DecayFirst | None = getattr(_updating, "decay", None)
        if decay is not None and self.weight_decay is not None:
            variables = decay(self, list(variables))
        original(self, variables)

    return _apply_weight_decay


def install() -> None:
    """Lets `updating_first` come before Keras' own update, and vectors stand for variables."""
    _UPDATE.replace(_with_first)
    _DECAY.replace(_with_decay_first)
    tf.register_tensor_conversion_function(OneOfMany, _as_tensor)
