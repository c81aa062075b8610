"""Which optimizers treat each element for itself, and which look at whole variables."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

# A matrix, and a kernel of a convolution: some optimizers treat them in different ways.
_SHAPES = ((4, 6), (2, 3, 2, 2))
_UPDATES = 3
_RATE = 0.01
_TOLERANCE = 1e-6
# Keras' own optimizers that look at whole variables, one by one. A trial does not show that all
# state belongs to one variable each, so no other optimizer is taken, and no subclass of these.
# Older versions of Keras do not have all of them.
_OF_WHOLE_VARIABLES = tuple(
    getattr(keras.optimizers, name)
    for name in ("Lamb", "Adafactor", "Muon", "ScheduleFreeAdamW")
    if hasattr(keras.optimizers, name)
)


def check_elementwise(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError unless parts of a variable can be updated one by one.

    A copy of the optimizer updates a small variable, and two others a half of this variable each.
    All must come to the same. Clipping is left out, as it is done before.

    Args:
        optimizer: as the user gave it, below any loss scaling.
    """
    # The copies must belong to no strategy, and a strategy's scope belongs to its thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        problem = thread.submit(_problem, type(optimizer), optimizer.get_config()).result()
    if problem:
        raise ValueError(
            "With `sharding` each replica updates a part of every variable. That is right for "
            "optimizers that treat each element for itself, such as Adam. This one does not, or "
            "it could not be tried: leave `sharding` out, or take another optimizer. Of those that "
            "look at whole variables, Keras' Lamb, Adafactor, Muon and ScheduleFreeAdamW, but no "
            'subclasses of them, go with sharding="optimizer" and "gradients". '
            f"Received: {type(optimizer).__name__}, {problem}"
        )


def needs_whole_variables(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether an optimizer updates each variable for itself, but not each element, as Lamb does.

    Args:
        optimizer: as the user gave it, below any loss scaling.
    """
    return type(optimizer) in _OF_WHOLE_VARIABLES


def begins_with_values(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether the state of such an optimizer begins with the values of the weights."""
    return type(optimizer) is getattr(keras.optimizers, "ScheduleFreeAdamW", None)


def _problem(kind: type[keras.optimizers.Optimizer], config: dict[str, Any]) -> str | None:
    """Why parts cannot be updated one by one; None if they can."""
    config = {**config, "learning_rate": _RATE}
    for setting in ("clipnorm", "global_clipnorm", "clipvalue", "loss_scale_factor"):
        if setting in config:
            config[setting] = None
    try:
        if _state_depends_on_values(kind, config):
            return "whose state begins with the values of the weights"
    except Exception as error:
        return _raises(error)
    generator = np.random.default_rng(0)
    for shape in _SHAPES:
        first = generator.normal(size=shape).astype(np.float32)
        gradients = generator.normal(size=(_UPDATES, *shape)).astype(np.float32)
        try:
            whole = _updated(kind, config, first, gradients)
            by_half = zip(_halves(first), zip(*map(_halves, gradients)))
            halves = [_updated(kind, config, half, given) for half, given in by_half]
        except Exception as error:
            return _raises(error)
        difference = float(np.abs(whole.ravel() - np.concatenate(halves)).max())
        if not difference <= _TOLERANCE:
            return f"whose update of a variable differs from that of its halves by {difference:.2g}"
    return None


def _halves(array: np.ndarray) -> list[np.ndarray]:
    return np.split(array.ravel(), 2)


def _raises(error: Exception) -> str:
    return f"which raises {type(error).__name__}: {error}"


def _state_depends_on_values(
    kind: type[keras.optimizers.Optimizer], config: dict[str, Any]
) -> bool:
    states = []
    for value in (np.zeros([2, 2], np.float32), np.ones([2, 2], np.float32)):
        optimizer = kind.from_config(dict(config))
        optimizer.build([keras.Variable(value, name="weight")])
        states.append([variable.numpy() for variable in optimizer.variables])
    return not all(np.array_equal(first, second) for first, second in zip(*states))


def _updated(
    kind: type[keras.optimizers.Optimizer],
    config: dict[str, Any],
    value: np.ndarray,
    gradients: Iterable[np.ndarray],
) -> np.ndarray:
    """What an optimizer makes of a variable with this first value."""
    optimizer = kind.from_config(dict(config))
    variable = keras.Variable(value, name="weight")
    optimizer.build([variable])
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
    return variable.numpy()
