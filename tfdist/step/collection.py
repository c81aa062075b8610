"""Hands a step's gradients to whoever runs the step as a function, instead of applying them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import tensorflow as tf


@dataclasses.dataclass
class Collected:
    """The gradients of one step.

    Attributes:
        applied: for each time that an optimizer is applied, the optimizer and its gradients, one
            per variable that it was built for; None where there is none.
        builds_later: whether the variables do not exist yet, so that optimizers cannot be built.
        unbuilt: with `builds_later`, the optimizers that were not built, each with the variables
            that it is for.
    """

    applied: list[tuple[Any, list]] = dataclasses.field(default_factory=list)
    builds_later: bool = False
    unbuilt: list[tuple[Any, list]] = dataclasses.field(default_factory=list)


def is_collected_by(strategy: tf.distribute.Strategy) -> bool:
    """Whether optimizers hand their gradients to `strategy` instead of applying them."""
    return getattr(strategy, "collects_gradients", False)


_collecting = threading.local()


def current() -> Collected | None:
    """Where this thread's gradients go; None where optimizers apply them."""
    return getattr(_collecting, "collected", None)


@contextlib.contextmanager
def collect(builds_later: bool = False) -> Iterator[Collected]:
    """In this context, `DistributedOptimizer.apply` in this thread hands out its gradients.

    Args:
        builds_later: whether optimizers are noted instead of built; see `Collected`.
    """
    previous = current()
    _collecting.collected = Collected(builds_later=builds_later)
    try:
        yield _collecting.collected
    finally:
        _collecting.collected = previous
