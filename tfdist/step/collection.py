"""Collects a step's gradients for the caller that runs the step, instead of applying them."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

from keras.optimizers import Optimizer


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

    def takes(self, optimizer: Optimizer, gradients: list, variables: list) -> bool:
        """Whether it has taken the gradients as they are, without their weight."""
        return False


_collecting = threading.local()


def current() -> Collected | None:
    """Where this thread's gradients go; None where optimizers apply them."""
    return getattr(_collecting, "collected", None)


@contextlib.contextmanager
def collect(collected: Collected | None) -> Iterator[Any]:
    """In this context and thread, `DistributedOptimizer.apply` hands out its gradients.

    Args:
        collected: where the gradients go. None where optimizers apply them.
    """
    previous = current()
    _collecting.collected = collected
    try:
        yield _collecting.collected
    finally:
        _collecting.collected = previous
