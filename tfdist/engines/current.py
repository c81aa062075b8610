"""The engine of the strategy that runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import tensorflow as tf

from tfdist.engines.contract import Engine
from tfdist.engines.replica_context import ReplicaContextEngine

_OF_OTHERS = ReplicaContextEngine()

_thread = threading.local()


class ExchangeRefusedError(RuntimeError):
    """A replica needs the others where it must compute alone."""


@contextlib.contextmanager
def refusing_exchanges() -> Iterator[None]:
    """In this context and thread, `current` raises ExchangeRefusedError."""
    before = getattr(_thread, "refuses", False)
    _thread.refuses = True
    try:
        yield
    finally:
        _thread.refuses = before


def current() -> Engine:
    """The engine of the current strategy; the replica context if the strategy is not tfdist's."""
    if getattr(_thread, "refuses", False):
        raise ExchangeRefusedError("the step needs an engine")
    return getattr(tf.distribute.get_strategy(), "engine", _OF_OTHERS)
