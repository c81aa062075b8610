"""Collects a step's gradients for the caller that runs the step, instead of applying them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any


class CollectsGradients:
    """Marks a strategy that applies by itself the gradients from `collect`.

    It is mixed in before a `tf.distribute` strategy. Under such a strategy an optimizer exchanges
    nothing and accumulates nothing.
    """


@dataclasses.dataclass
class Collected:
    """The gradients of one step.

    Attributes:
        applied: for each time that an optimizer is applied, the optimizer and its gradients. There
            is one gradient per variable that the optimizer was built for; None where there is none.
        builds_later: whether the variables do not exist yet, so that optimizers cannot be built.
        unbuilt: with `builds_later`, the optimizers that are not built yet, each with its
            variables.
    """

    applied: list[tuple[Any, list]] = dataclasses.field(default_factory=list)
    builds_later: bool = False
    unbuilt: list[tuple[Any, list]] = dataclasses.field(default_factory=list)


_collecting = threading.local()


def current() -> Collected | None:
    """Where this thread's gradients go; None where optimizers apply them."""
    return getattr(_collecting, "collected", None)


@contextlib.contextmanager
def collect(builds_later: bool = False) -> Iterator[Collected]:
    """In this context and thread, `DistributedOptimizer.apply` hands out its gradients.

    Args:
        builds_later: whether optimizers are only noted, not built; see `Collected`.
    """
    previous = current()
    _collecting.collected = Collected(builds_later=builds_later)
    try:
        yield _collecting.collected
    finally:
        _collecting.collected = previous
