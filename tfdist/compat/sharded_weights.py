"""Keras variables of which each replica keeps a part, and the calls of the layers with them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeGuard

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.registry import KERAS, READ, REPLACED, WRITTEN, overrides, touch
from tfdist.compat.stateless import stateless_scope
from tfdist.structures import Structure

_VARIABLE = "keras.src.backend.tensorflow.core:Variable"
_IN_PARTS: dict[str, str] = {
    "why": "in sharded training the `tf.Variable` in a weight is this replica's part of it, and "
    "reading the weight gathers the parts",
    "versions": KERAS,
    "instead": "a Keras variable that may be stored in another form than it is read",
}
_VALUE = touch(_VARIABLE, "_value", WRITTEN, **_IN_PARTS)
_DTYPE = touch(_VARIABLE, "_dtype", READ, **_IN_PARTS)
_AUTOCAST = touch(_VARIABLE, "_maybe_autocast", READ, "self", "value", **_IN_PARTS)
_INITIALIZE = touch(
    *(_VARIABLE, "_initialize_with_initializer", REPLACED, "self", "initializer"), **_IN_PARTS
)
_SERIALIZE = touch(
    *(_VARIABLE, "_serialize_to_tensors", WRITTEN, "self"),
    why="where a rank has a part of a weight, a `tf.train.Checkpoint` would have this part only",
    versions=KERAS,
    instead="a public hook for what a checkpoint has of a variable",
)
_CALL = touch(
    *("keras.src.layers.layer:Layer", "__call__", REPLACED, "self"),
    why="a layer's weights are gathered when its input is there, and again when the gradient of "
    "its output is there",
    versions=KERAS,
    instead="a public hook around the call of a layer",
)
touch(
    *("keras.src.backend.tensorflow.nn", "_get_logits", READ),
    *("output", "from_logits", "op_type", "fn_name"),
    why="crossentropies after a softmax or a sigmoid compute with what these were given, which "
    "Keras notes at their results; it must be found at a tensor that stands for such a result",
    versions=KERAS,
    instead="a public mark of such tensors",
)
# A mark of whole weights: the variable that it was gathered for.
_IS_VALUE_OF = "_tfdist_is_value_of"
_LOGITS = "_keras_logits"
# Keras also finds out the logits of these operations.
_WITH_LOGITS = {"Softmax": tf.nn.softmax, "Sigmoid": tf.nn.sigmoid}


class Keeper(Protocol):
    """Reads and writes whole weights for the variables of which replicas keep parts."""

    def whole(self, variable: ShardedVariable) -> tf.Tensor:
        """The whole weight, of the variable's shape."""

    def assign(self, variable: ShardedVariable, value: tf.Tensor) -> None:
        """Keeps the parts of `value`, a whole weight."""

    def numpy(self, variable: ShardedVariable) -> np.ndarray:
        """The whole weight as an array; outside of functions."""


@overrides("_direct_assign", "_serialize_to_tensors", "_export_to_saved_model_graph", **_IN_PARTS)
class ShardedVariable(keras.Variable):
    """A weight of which each replica keeps a part. Its `shape` and `value` are those of the whole.

    Variables become sharded as they are made; see `hook_weights`.

    Attributes:
        keeper: reads and writes the whole.
        parts: how the weight is divided; a `tfdist.step.sharding.parts.Parts`.
        times_set: how often all processes set the weight from outside of steps.
        set_to: a checksum of the whole weight that it was set to; 0 with one process.
        at_hand: while one process writes all weights, returns this whole one; None otherwise.
        takes: while one process reads weights, is given this whole one; None otherwise.
        read_alone: returns the whole weight that this process alone has read; None otherwise.
        is_watched: whether steps note if each replica's own gradient is finite.
    """

    keeper: Keeper
    parts: Any
    times_set: int = 0
    set_to: int = 0
    at_hand: Callable[[], np.ndarray] | None = None
    takes: Callable[[np.ndarray], None] | None = None
    read_alone: Callable[[], np.ndarray] | None = None
    is_watched: bool = False

    @property
    def value(self) -> tf.Tensor:
        """The whole weight, gathered now; or the tensor that a `StatelessScope` has for it."""
        scope = stateless_scope()
        given = None if scope is None else scope.get_current_value(self)
        if given is not None:
            return _AUTOCAST.of(self)(given)
        whole = self.keeper.whole(self)
        setattr(whole, _IS_VALUE_OF, self)
        return _AUTOCAST.of(self)(whole)

    @property
    def handle(self) -> tf.Tensor:
        """The resource with this replica's part: tapes take the gradient of the part."""
        return stored(self).handle

    def numpy(self) -> np.ndarray:
        """The whole weight; all processes must ask for it."""
        return self.keeper.numpy(self)

    def __array__(self, dtype: str | None = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.asarray(self.numpy(), dtype)

    def __repr__(self) -> str:
        return f"<ShardedVariable path={self.path}, shape={self.shape}, dtype={self.dtype}>"

    def _direct_assign(self, value: tf.Tensor) -> None:
        self.keeper.assign(self, value)

    def _serialize_to_tensors(self) -> Any:
        raise ValueError(
            "With `sharding` a tf.train.Checkpoint would have one replica's parts of the weights "
            "only. Save with `model.save` or `model.save_weights`. Received: a checkpoint with "
            f"{self.path}"
        )

    def _export_to_saved_model_graph(
        self, object_map: Structure, tensor_map: Structure, options: Structure, **kwargs: Structure
    ) -> Any:
        raise ValueError(
            "A model with weights in parts cannot be exported. Save it with `model.save`, load it "
            f"outside of the scope, and export that model. Received: an export with {self.path}"
        )


def without_values(sources: Structure) -> Structure:
    """`sources` of a gradient, with the variable in place of each value that was gathered for it.

    The value of any other variable is a variable too, by which a tape differentiates. A loss does
    not depend on a weight that is gathered once more to name it.
    """

    def named(source: Structure) -> Any:
        return getattr(source, _IS_VALUE_OF, source) if isinstance(source, tf.Tensor) else source

    flat = tf.nest.flatten(sources)
    variables = [named(source) for source in flat]
    if all(one is source for one, source in zip(variables, flat)):
        return sources
    return tf.nest.pack_sequence_as(sources, variables)


def is_sharded(variable: object) -> TypeGuard[ShardedVariable]:
    """Whether replicas keep parts of a Keras variable."""
    return isinstance(variable, ShardedVariable)


def stored(variable: keras.Variable) -> Any:
    """The `tf.Variable` in a Keras variable: of a sharded one it has this replica's part."""
    return _VALUE.of(variable) if is_sharded(variable) else variable.value


def shard(variable: keras.Variable, kept: tf.Variable, parts: object, keeper: Keeper) -> None:
    """Makes a Keras variable that is being made a sharded one.

    Args:
        variable: the variable, without a value.
        kept: has the part of each replica.
        parts: how the variable is divided.
        keeper: reads and writes the whole.
    """
    _VALUE.write(variable, kept)
    variable.__class__ = ShardedVariable
    variable.keeper, variable.parts = keeper, parts


def stored_dtype(variable: keras.Variable) -> tf.DType:
    """The dtype of a variable, whatever Keras casts it to in layers."""
    return tf.as_dtype(_DTYPE.of(variable))


def refuse_checkpoints(variable: keras.Variable, message: str) -> None:
    """Makes a `tf.train.Checkpoint` with `variable` raise ValueError."""

    def refuse() -> Any:
        raise ValueError(message)

    _SERIALIZE.write(variable, refuse)


def hook_weights(make: Callable[[keras.Variable, Callable], bool]) -> None:
    """Before Keras makes a variable by an initializer, `make(variable, initializer)` may make it.

    `make` returns whether it did.
    """

    def replaced(original: Callable) -> Callable:
        @functools.wraps(original)
        def _initialize_with_initializer(self: keras.Variable, initializer: Callable) -> None:
            if not make(self, initializer):
                original(self, initializer)

        return _initialize_with_initializer

    _INITIALIZE.replace(replaced)


def hook_layer_calls(around: Callable[..., Any]) -> None:
    """Makes `layer(...)` call `around(call, ...)`; `call` is Keras' own, for this layer."""

    def replaced(original: Callable) -> Callable:
        @functools.wraps(original)
        def __call__(self: keras.layers.Layer, *args: Structure, **kwargs: Structure) -> Any:
            return around(functools.partial(original, self), *args, **kwargs)

        return __call__

    _CALL.replace(replaced)


def stand_in(tensor: tf.Tensor, passed: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """`passed(tensor)`, for which Keras' layers and losses do what they do for `tensor`.

    It has the marks of `tensor`, such as its mask. A loss after a softmax or a sigmoid computes
    with what these were given, which then passes too.
    """
    logits = getattr(tensor, _LOGITS, None)
    function = _WITH_LOGITS.get(tensor.op.type)
    if logits is None and function is not None:
        other = function(passed(tensor.op.inputs[0]))
    else:
        other = passed(tensor)
    vars(other).update(vars(tensor))
    if isinstance(logits, tf.Tensor) and logits.graph is tensor.graph:
        setattr(other, _LOGITS, passed(logits))
    return other
