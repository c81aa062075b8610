"""The optimizers of a model."""

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
