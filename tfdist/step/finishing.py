"""What a strategy does with gradients that are summed over its replicas, before the update."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import keras
import tensorflow as tf

from tfdist.structures import Gradient


@runtime_checkable
class FinishesGradients(Protocol):
    """A strategy with more ranks than those that a rank sums gradients with."""

    def finish_gradients(
        self,
        optimizer: keras.optimizers.Optimizer,
        gradients: list[Gradient | None],
        variables: list[keras.Variable],
    ) -> list[Gradient | None]:
        """The gradients to apply; in replica context.

        Args:
            optimizer: updates the variables.
            gradients: of the global batch; None where there is none.
            variables: the variables of the gradients.
        """


def finished(
    optimizer: keras.optimizers.Optimizer,
    gradients: list[Gradient | None],
    variables: list[keras.Variable],
) -> list[Gradient | None]:
    """The gradients to apply, under any strategy; see `FinishesGradients`."""
    strategy = tf.distribute.get_strategy()
    if isinstance(strategy, FinishesGradients):
        return strategy.finish_gradients(optimizer, gradients, variables)
    return gradients
