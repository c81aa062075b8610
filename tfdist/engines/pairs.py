"""Two processes that exchange tensors, so that the link between them can be measured."""

from __future__ import annotations

from typing import Protocol

import tensorflow as tf


class Pairs(Protocol):
    """Carries tensors between two processes at a time, as the engine's own operations do.

    Outside of steps, and outside of a `tf.function`.
    """

    def swap(self, vector: tf.Tensor, pair: tuple[int, int] | None) -> tf.Tensor:
        """What the other process of a pair gives. All processes call it, in the same order.

        Args:
            vector: float32, of the same length in both processes.
            pair: two ranks, the lower one first, one of which is this process; several pairs may
                exchange at the same time. None for a process that has no part in it.

        Returns:
            The vector of the other process; an empty vector without a pair.
        """
