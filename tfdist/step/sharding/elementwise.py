"""Which optimizers treat each element for itself, and which look at whole variables."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

# A matrix, and a kernel of a convolution: some optimizers treat them in different ways.
_SHAPES = ((4, 6), (2, 3, 2, 2))
# How large the gradients of the updates are, one after the other: a rule may begin at some size.
_SIZES = (1e-3, 1e-3, 1.0, 1.0, 1e3, 1e3)
_RATE = 0.01
_TOLERANCE = 1e-6
# Clipping is done before, and by all replicas together.
_LEFT_OUT = ("clipnorm", "global_clipnorm", "clipvalue", "loss_scale_factor")
_PLAIN = (bool, int, float, str, type(None))
# Keras' own optimizers that look at whole variables, one by one. A trial does not show that all
# state belongs to one variable each, so no other optimizer is taken, and no subclass of these.
# Older versions of Keras do not have all of them.
_OF_WHOLE_VARIABLES = tuple(
    getattr(keras.optimizers, name)
    for name in ("Lamb", "Adafactor", "Muon", "ScheduleFreeAdamW")
    if hasattr(keras.optimizers, name)
)


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """How copies of an optimizer are made, which have its settings and no state.

    Attributes:
        kind: its class.
        config: its configuration.
        settings: its plain attributes: not all of them need to be in the configuration.
    """

    kind: type[keras.optimizers.Optimizer]
    config: dict[str, Any]
    settings: dict[str, Any]

    @classmethod
    def of(cls, optimizer: keras.optimizers.Optimizer) -> _Recipe:
        """The recipe for copies of `optimizer` that do not clip."""
        config = {**optimizer.get_config(), "learning_rate": _RATE}
        config.update({name: None for name in _LEFT_OUT if name in config})
        settings = {
            name: value
            for name, value in vars(optimizer).items()
            if isinstance(value, _PLAIN) and name not in (*_LEFT_OUT, "built")
        }
        return cls(type(optimizer), config, settings)

    def copy(self) -> keras.optimizers.Optimizer:
        """A new copy, not built."""
        optimizer = self.kind.from_config(dict(self.config))
        for name, value in self.settings.items():
            setattr(optimizer, name, value)
        return optimizer


def check_elementwise(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError unless parts of a variable can be updated one by one.

    A copy of the optimizer updates a small variable, and two others a half of this variable each.
    All must come to the same, with gradients that are small, large, and not finite in some element.
    Clipping is left out, as it is done before.

    Args:
        optimizer: as the user gave it, below any loss scaling.
    """
    # The copies must belong to no strategy, and a strategy's scope belongs to its thread.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        problem = thread.submit(_problem, _Recipe.of(optimizer)).result()
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


def _problem(recipe: _Recipe) -> str | None:
    """Why parts cannot be updated one by one; None if they can."""
    try:
        if _state_depends_on_values(recipe):
            return "whose state begins with the values of the weights"
    except Exception as error:
        return _raises(error)
    generator = np.random.default_rng(0)
    for shape in _SHAPES:
        first = generator.normal(size=shape).astype(np.float32)
        gradients = list(_gradients(generator, shape))
        try:
            whole = _updated(recipe, first, gradients)
            by_half = zip(_halves(first), zip(*map(_halves, gradients)))
            halves = [_updated(recipe, half, given) for half, given in by_half]
        except Exception as error:
            return _raises(error)
        for gradient, value, *parts in zip(gradients, whole, *halves):
            if not _are_equal(value.ravel(), np.concatenate(parts)):
                return (
                    "whose update of a variable differs from that of its halves, where the "
                    f"largest gradient is {np.abs(gradient).max():.2g}"
                )
    return None


def _gradients(generator: np.random.Generator, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    for size in _SIZES:
        yield (size * generator.normal(size=shape)).astype(np.float32)
    # Only these two elements may suffer, and not those in the other half.
    last = generator.normal(size=shape).astype(np.float32)
    last.flat[:2] = np.nan, np.inf
    yield last


def _are_equal(one: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


def _halves(array: np.ndarray) -> list[np.ndarray]:
    return np.split(array.ravel(), 2)


def _raises(error: Exception) -> str:
    return f"which raises {type(error).__name__}: {error}"


def _state_depends_on_values(recipe: _Recipe) -> bool:
    states = []
    for value in (np.zeros([2, 2], np.float32), np.ones([2, 2], np.float32)):
        optimizer = recipe.copy()
        optimizer.build([keras.Variable(value, name="weight")])
        states.append([variable.numpy() for variable in optimizer.variables])
    return not all(np.array_equal(first, second) for first, second in zip(*states))


def _updated(
    recipe: _Recipe, value: np.ndarray, gradients: Iterable[np.ndarray]
) -> list[np.ndarray]:
    """What an optimizer makes of a variable with this first value, after each update."""
    optimizer = recipe.copy()
    variable = keras.Variable(value, name="weight")
    optimizer.build([variable])
    found = []
    for gradient in gradients:
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        found.append(variable.numpy())
    return found
