"""Stages 4 and 5: clip the global gradient and update, with the inner optimizer's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import compat


def apply_reduced(
    optimizer: keras.optimizers.Optimizer,
    gradients: list,
    variables: list[keras.Variable],
    after: Sequence[Any] = (),
) -> None:
    """Lets `optimizer` clip and apply gradients that are summed over the replicas already.

    Called in replica context. Every replica computes the same update of its own copy.

    Args:
        optimizer: the inner optimizer.
        gradients: the global gradients; None where a variable has none.
        variables: the variables that they belong to.
        after: what is computed before any part of the update. TensorFlow would begin the step with
            those parts that need no gradient, such as momentum times velocity, and send the first
            gradients later by what these take.
    """
    # One operation in between: each of the update's would otherwise depend on each of `after`.
    ready = [tf.group(*after)] if after else []
    with tf.control_dependencies(ready), compat.applying_reduced_gradients():
        optimizer.apply(gradients, variables)
