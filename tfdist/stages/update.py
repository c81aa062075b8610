"""Stages 4 and 5: clip the global gradient and update, with the inner optimizer's own code."""

from __future__ import annotations

import keras

from tfdist import _compat


def apply_reduced(
    optimizer: keras.optimizers.Optimizer, gradients: list, variables: list[keras.Variable]
) -> None:
    """Lets `optimizer` clip and apply gradients that are summed over the replicas already.

    Called in replica context. Every replica computes the same update of its own copy.

    Args:
        optimizer: the inner optimizer.
        gradients: the global gradients; None where a variable has none.
        variables: the variables that they belong to.
    """
    with _compat.applying_reduced_gradients():
        optimizer.apply(gradients, variables)
