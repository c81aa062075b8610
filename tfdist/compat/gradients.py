"""TensorFlow's gradient tapes: their methods are public, but replacing the methods is not."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfdist.compat.registry import BOTH, READ, REPLACED, TENSORFLOW, touch

_TAPE = "tensorflow.python.eager.backprop:GradientTape"
_BY_VALUE: dict[str, str] = {
    "why": "inside a `keras.StatelessScope` a variable's value is a tensor, but `train_step` names "
    "the variable as the source of its gradients, which has no resource there",
    "versions": BOTH,
    "instead": "a `StatelessScope` that tapes look into",
}
_ENTER = touch(_TAPE, "__enter__", REPLACED, "self", **_BY_VALUE)
_WATCHES = touch(_TAPE, "_watch_accessed_variables", READ, **_BY_VALUE)
_OF_STEP: dict[str, str] = {
    "why": "in a loop of the user's a replica's share of the batch is applied to the gradient",
    "versions": TENSORFLOW,
    "instead": "a hook for the loss that a strategy differentiates",
}
_GRADIENT = touch(
    *(_TAPE, "gradient", REPLACED, "self", "target", "sources", "output_gradients"),
    "unconnected_gradients",
    **_OF_STEP,
)
_JACOBIAN = touch(_TAPE, "jacobian", REPLACED, "self", "target", "sources", **_OF_STEP)
_RECORDED: dict[str, str] = {
    "why": "a gradient that another tape records is not the one that is applied; synchronized "
    "BatchNormalization needs the share in the loss, not in the gradient",
    "versions": TENSORFLOW,
    "instead": "a public way to ask which tapes record",
}
_RECORDING = touch(_TAPE, "_recording", READ, **_RECORDED)
_SHOULD_RECORD = touch(
    *("tensorflow.python.eager.record", "should_record_backprop", READ, "tensors"), **_RECORDED
)
_STOP = touch("tensorflow.python.eager.record", "stop_recording", READ, **_RECORDED)


class _State(threading.local):
    values: Mapping[int, list[tf.Tensor]] | None = None
    join: Callable[[list], Any]
    in_jacobian = False


_state = _State()


@contextlib.contextmanager
def gradients_by_value(
    values: Mapping[int, list[tf.Tensor]], join: Callable[[list], Any]
) -> Iterator[None]:
    """In this thread, tapes differentiate by `values` in place of the Keras variables.

    Args:
        values: for the id of each Keras variable, the values of its parts.
        join: makes the gradient of a variable from the gradients of its parts.
    """
    previous = _state.values
    _state.values, _state.join = values, join
    try:
        yield
    finally:
        _state.values = previous


def hook_gradients(hook: Callable[..., Any]) -> None:
    """Makes `tape.gradient(...)` call `hook(gradient, tape, target, sources, ...)` instead.

    `gradient` is the original and takes the same arguments. The last two are `output_gradients` and
    `unconnected_gradients`.
    """

    def make(original: Callable) -> Callable:
        by_value = functools.partial(_by_value, original)

        @functools.wraps(original)
        def gradient(
            self: Any,
            target: Any,
            sources: Any,
            output_gradients: Any = None,
            unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        ) -> Any:
            return hook(by_value, self, target, sources, output_gradients, unconnected_gradients)

        return gradient

    _GRADIENT.replace(make)


def _by_value(
    gradient: Callable,
    tape: Any,
    target: Any,
    sources: Any,
    output_gradients: Any,
    unconnected_gradients: Any,
) -> Any:
    if not _state.values:
        return gradient(tape, target, sources, output_gradients, unconnected_gradients)
    by_value = [_state.values.get(id(source), source) for source in tf.nest.flatten(sources)]
    found = [
        _state.join(one) if isinstance(one, list) else one
        for one in gradient(tape, target, by_value, output_gradients, unconnected_gradients)
    ]
    return tf.nest.pack_sequence_as(sources, found)


def in_jacobian() -> bool:
    """Whether this thread is inside `tape.jacobian`, which itself takes gradients."""
    return _state.in_jacobian


def is_recorded(tape: Any, tensors: list) -> bool:
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
    def watch_values(self: Any) -> Any:
        tape = enter(self)
        if _state.values and _WATCHES.of(self):
            tape.watch(tf.nest.flatten(list(_state.values.values())))
        return tape

    return watch_values


def _noted_jacobian(original: Callable) -> Callable:
    @functools.wraps(original)
    def jacobian(self: Any, *args: Any, **kwargs: Any) -> Any:
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
