"""When functions are traced anew, and what a trace leaves in TensorFlow for ever."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from tfdist.compat.registry import READ, REPLACED, TENSORFLOW, touch

_WHY = (
    "each trace of a `tf.custom_gradient` registers a gradient, which keeps the traced graph for "
    "ever; an elastic job traces its steps anew in each group"
)
_GRADIENTS = touch(
    *("tensorflow.python.framework.ops", "gradient_registry", READ),
    why=_WHY,
    versions=TENSORFLOW,
    instead="gradients that are forgotten with their graph",
)
_REGISTRY = touch(
    *("tensorflow.python.framework.registry:Registry", "_registry", READ),
    why=_WHY,
    versions=TENSORFLOW,
    instead="gradients that are forgotten with their graph",
)
_START = "CustomGradient-"


def custom_gradients() -> set[str]:
    """The names under which gradients of traced functions are registered now."""
    return {name for name in _REGISTRY.of(_GRADIENTS.get()) if name.startswith(_START)}


def forget_custom_gradients(names: Iterable[str]) -> None:
    """Forgets gradients; the functions that need them must not be differentiated any more."""
    registered = _REGISTRY.of(_GRADIENTS.get())
    for name in names:
        registered.pop(name, None)


_CONTEXT = touch(
    *("tensorflow.python.eager.polymorphic_function.function_context", "make_function_context"),
    *(REPLACED, "scope_type"),
    why="TensorFlow would use the trace of a function again when the group of ranks has changed, "
    "with another rank's part of the batch, and numbers of operations that nobody else has",
    versions=TENSORFLOW,
    instead="a public way to say what a trace depends on besides arguments",
)


def hook_traces(state: Callable[[], object]) -> None:
    """Makes functions be traced for each value of `state()`, unless that is None."""

    def make(original: Callable) -> Callable:
        @functools.wraps(original)
        def make_function_context(scope_type: object = None) -> object:
            found, now = original(scope_type), state()
            if now is None:
                return found
            return type(found)(context=(found.context, now), scope_type=found.scope_type)

        return make_function_context

    _CONTEXT.replace(make)
