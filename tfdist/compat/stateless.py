"""Keras' `StatelessScope`, in which layers change nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tfdist.compat.registry import KERAS, READ, touch

_SCOPE: dict[str, str] = {
    "why": "a step runs in a `keras.StatelessScope` so that it changes nothing, but it may still "
    "have to make variables",
    "versions": KERAS,
    "instead": "a public way to make variables inside of a `StatelessScope`",
}
_GET_SCOPE = touch(
    *("keras.src.backend.common.stateless_scope", "get_stateless_scope", READ), **_SCOPE
)
_SET_ATTRIBUTE = touch(
    *("keras.src.backend.common.global_state", "set_global_attribute", READ, "name", "value"),
    **_SCOPE,
)


def stateless_scope() -> Any:
    """The `keras.StatelessScope` that is active in this thread; None if there is none."""
    return _GET_SCOPE.get()()


@contextlib.contextmanager
def outside_stateless_scope() -> Iterator[None]:
    """Suspends Keras' `StatelessScope` in this context, so that variables can be created."""
    scope = stateless_scope()
    _SET_ATTRIBUTE.get()("stateless_scope", None)
    try:
        yield
    finally:
        _SET_ATTRIBUTE.get()("stateless_scope", scope)
