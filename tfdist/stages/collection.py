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
        by_optimizer: pairs of an optimizer and its gradients, one per variable that it was built
            for; None where there is none.
    """

    by_optimizer: list[tuple[Any, list]] = dataclasses.field(default_factory=list)

    def add(self, optimizer: Any, gradients: list) -> None:
        """Notes the gradients that `optimizer` was given.

        Raises:
            ValueError: when it was given some in this step already.
        """
        if any(other is optimizer for other, _ in self.by_optimizer):
            raise ValueError(
                "Under a parameter server an optimizer can be applied once per step. Apply all "
                "gradients at once, or use an optimizer for each group of variables. "
                f"Received: a second apply of {optimizer.name}"
            )
        self.by_optimizer.append((optimizer, gradients))


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
