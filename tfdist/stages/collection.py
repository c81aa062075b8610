"""Hands a step's gradients to whoever runs the step as a function, instead of applying them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any


@dataclasses.dataclass
class Collected:
    """The gradients of one step.

    Attributes:
        applied: for each time that an optimizer is applied, the optimizer and its gradients, one
            per variable that it was built for; None where there is none.
    """

    applied: list[tuple[Any, list]] = dataclasses.field(default_factory=list)


_collecting = threading.local()


def current() -> Collected | None:
    """Where this thread's gradients go; None where optimizers apply them."""
    return getattr(_collecting, "collected", None)


@contextlib.contextmanager
def collect() -> Iterator[Collected]:
    """In this context, `DistributedOptimizer.apply` in this thread hands out its gradients."""
    previous = current()
    _collecting.collected = Collected()
    try:
        yield _collecting.collected
    finally:
        _collecting.collected = previous
