"""The optimizers of a model, and their learning rates."""

from __future__ import annotations

import keras


def optimizers_of(model: keras.Model) -> dict[str, keras.optimizers.Optimizer]:
    """The optimizers that are attributes of `model`, by the attribute's name.

    A model with a `train_step` of its own may have several optimizers, set after `compile`.
    """
    return {
        name: value
        for name, value in vars(model).items()
        if isinstance(value, keras.optimizers.Optimizer)
    }


def learning_rates(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """The learning rates of `optimizer` that can be set; a schedule's cannot.

    A `MultiOptimizer` has none of its own, but its parts have.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return learning_rates(inner)
    parts = getattr(optimizer, "optimizers", None)
    if parts is not None:
        return [rate for part in parts for rate in learning_rates(part)]
    rate = optimizer.learning_rate
    return [rate] if isinstance(rate, keras.Variable) else []
