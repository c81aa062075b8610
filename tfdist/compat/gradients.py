"""TensorFlow's gradient tapes: their methods are public, but replacing the methods is not."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.graphs import resource_of
from tfdist.compat.partitions import PartitionedVariable
from tfdist.compat.registry import BOTH, READ, REPLACED, TENSORFLOW, touch
from tfdist.compat.sharded_weights import stored
from tfdist.structures import Structure, Variable

_TAPE = "tensorflow.python.eager.backprop:GradientTape"
_BY_VALUE: dict[str, str] = {
    "why": "inside a `keras.StatelessScope` the value of a variable is a tensor, so the tape does "
    "not see the variable, for which `train_step` asks the gradient",
    "versions": BOTH,
    "instead": "a `StatelessScope` that tapes know of",
}
_ENTER = touch(_TAPE, "__enter__", REPLACED, "self", **_BY_VALUE)
_WATCHES = touch(_TAPE, "_watch_accessed_variables", READ, **_BY_VALUE)
_OF_STEP: dict[str, str] = {
    "why": "in a user's own loop, the gradient is multiplied by the replica's share of the batch",
    "versions": TENSORFLOW,
    "instead": "a public hook for the loss that is differentiated in a strategy",
}
_GRADIENT = touch(
    *(_TAPE, "gradient", REPLACED, "self", "target", "sources", "output_gradients"),
    "unconnected_gradients",
    **_OF_STEP,
)
_JACOBIAN = touch(_TAPE, "jacobian", REPLACED, "self", "target", "sources", **_OF_STEP)
_RECORDED: dict[str, str] = {
    "why": "a gradient that another tape records is not the gradient that is applied. And "
    "synchronized BatchNormalization needs the replica's share in the loss, not in the gradient",
    "versions": TENSORFLOW,
    "instead": "a public way to ask which tapes record",
}
_RECORDING = touch(_TAPE, "_recording", READ, **_RECORDED)
_SHOULD_RECORD = touch(
    *("tensorflow.python.eager.record", "should_record_backprop", READ, "tensors"), **_RECORDED
)
_STOP = touch("tensorflow.python.eager.record", "stop_recording", READ, **_RECORDED)


class _State(threading.local):
    values: Mapping[int, list[tf.Tensor | tf.Variable]] | None = None
    in_jacobian = False


_state = _State()


@contextlib.contextmanager
def gradients_by_value(values: Mapping[int, list[tf.Tensor | tf.Variable]]) -> Iterator[None]:
    """In this thread, tapes differentiate by `values` in place of the Keras variables.

    Args:
        values: for the id of each Keras variable, the values of its parts, or its parts.
    """
    previous = _state.values
    _state.values = values
    try:
        yield
    finally:
        _state.values = previous


def hook_gradients(hook: Callable[..., Any], join: Callable[[list], Any]) -> None:
    """Makes `tape.gradient(...)` call `hook(gradient, tape, target, sources, ...)` instead.

    `gradient` is the original and takes the same arguments. The last two are `output_gradients` and
    `unconnected_gradients`. The original differentiates by the parts of partitioned variables.

    Args:
        hook: called instead.
        join: makes the gradient of a variable from the gradients of its parts.
    """

    def make(original: Callable) -> Callable:
        by_value = functools.partial(_by_value, original, join)

        @functools.wraps(original)
        def gradient(
            self: tf.GradientTape,
            target: Structure,
            sources: Structure,
            output_gradients: Structure = None,
            unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
        ) -> Any:
            return hook(by_value, self, target, sources, output_gradients, unconnected_gradients)

        return gradient

    _GRADIENT.replace(make)


def _by_value(
    gradient: Callable,
    join: Callable[[list], Any],
    tape: tf.GradientTape,
    target: Structure,
    sources: Structure,
    output_gradients: Structure,
    unconnected_gradients: tf.UnconnectedGradients,
) -> Any:
    values = _state.values or {}
    by_value = [values.get(id(source)) or _by_part(source) for source in tf.nest.flatten(sources)]
    if not values and not any(isinstance(source, list) for source in by_value):
        return gradient(tape, target, sources, output_gradients, unconnected_gradients)
    found = [
        join(one) if isinstance(one, list) else one
        for one in gradient(tape, target, by_value, output_gradients, unconnected_gradients)
    ]
    return tf.nest.pack_sequence_as(sources, found)


def _by_part(source: Any) -> Any:
    """The parts of a partitioned variable in a list; any other source itself."""
    value = stored(source) if isinstance(source, keras.Variable) else source
    return list(value.variables) if isinstance(value, PartitionedVariable) else source


def resources_of(variable: Variable) -> list:
    """What a graph has for a variable: its resource, or the values in `gradients_by_value`."""
    values = (_state.values or {}).get(id(variable), [variable])
    return [resource_of(value) for value in values]


def in_jacobian() -> bool:
    """Whether this thread is inside `tape.jacobian`, which itself takes gradients."""
    return _state.in_jacobian


def is_recorded(tape: tf.GradientTape, tensors: list) -> bool:
    """Whether a tape other than `tape` records what is computed from `tensors`."""
    if _RECORDING.of(tape):
        with tape.stop_recording():
            return is_recorded(tape, tensors)
    return _SHOULD_RECORD.get()(tensors)


def unrecorded() -> contextlib.AbstractContextManager:
    """In this context no tape records."""
    return _STOP.get()()


def _watch_values(enter: Callable) -> Callable:
    @functools.wraps(enter)
    def watch_values(self: tf.GradientTape) -> Any:
        tape = enter(self)
        if _state.values and _WATCHES.of(self):
            tape.watch(tf.nest.flatten(list(_state.values.values())))
        return tape

    return watch_values


def _noted_jacobian(original: Callable) -> Callable:
    @functools.wraps(original)
    def jacobian(self: tf.GradientTape, *args: Any, **kwargs: Any) -> Any:
        _state.in_jacobian = True
        try:
            return original(self, *args, **kwargs)
        finally:
            _state.in_jacobian = False

    return jacobian


def install() -> None:
    """Lets tapes watch values in place of variables, and notes Jacobians."""
    _ENTER.replace(_watch_values)
    _JACOBIAN.replace(_noted_jacobian)
