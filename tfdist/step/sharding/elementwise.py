"""Which optimizers treat each element for itself, and which look at whole variables."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.parts import leave_clipping_out, own_clipping

# A matrix, and a kernel of a convolution: some optimizers treat them in different ways. Halves have
# multiples of 16 elements: vector units take that many at once, and what is left over may be
# computed to another last bit.
_SHAPES = ((8, 8), (2, 2, 4, 8))
# How large the gradients of the updates are, one after the other: a rule may begin at some size.
_SIZES = (1e-3, 1e-3, 1.0, 1.0, 1e3, 1e3)
# How many updates were made before: a rule may begin after some.
_BEGUN = (0, 10**6)
# Large, so that a small weight decay changes weights too.
_RATE = 1.0
_LEFT_OUT = ("loss_scale_factor",)
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
        """The recipe for copies of `optimizer`."""
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
    All must come to the same values and the same state, to the last bit: with gradients that are
    small, large, and not finite in some element, in first updates and in late ones. Keras' clipping
    is left out, as the replicas do it together.

    Args:
        optimizer: as the user gave it, below any loss scaling.
    """
    own = own_clipping(optimizer)
    if own is not None:
        # It would clip a part by the norm of the part, or not be called at all.
        problem: str | None = (
            f"which has a `{own}` of its own; Keras' own clipping, such as by `clipvalue`, works"
        )
    else:
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
    for shape, begun in itertools.product(_SHAPES, _BEGUN):
        first = generator.normal(size=shape).astype(np.float32)
        gradients = list(_gradients(generator, shape))
        try:
            whole = _updated(recipe, begun, first, gradients)
            by_half = zip(_halves(first), zip(*map(_halves, gradients)))
            halves = [_updated(recipe, begun, half, given) for half, given in by_half]
        except Exception as error:
            return _raises(error)
        for gradient, arrays, *parts in zip(gradients, whole, *halves):
            what = _difference(arrays, *parts)
            if what is not None:
                return (
                    f"whose {what} differs from that of its halves, where the largest gradient is "
                    f"{np.abs(gradient).max():.2g} and {begun} updates were made before"
                )
    return None


def _gradients(generator: np.random.Generator, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
    for size in _SIZES:
        yield (size * generator.normal(size=shape)).astype(np.float32)
    # Only these two elements may suffer, and not those in the other half.
    last = generator.normal(size=shape).astype(np.float32)
    last.flat[:2] = np.nan, np.inf
    yield last


def _difference(whole: list[np.ndarray], *halves: list[np.ndarray]) -> str | None:
    """What differs between a variable and its halves: first their values, then their state."""
    if not _is_of(whole[0], [half[0] for half in halves]):
        return "update of a variable"
    if any(len(half) != len(whole) for half in halves):
        return "state for a variable"
    alike = all(_is_of(array, parts) for array, *parts in zip(whole, *halves))
    return None if alike else "state for a variable"


def _is_of(whole: np.ndarray, halves: list[np.ndarray]) -> bool:
    """Whether an array consists of halves, or is no array for each element and equal in all."""
    if whole.size == sum(half.size for half in halves):
        halves = [np.concatenate([half.ravel() for half in halves])]
        whole = whole.ravel()
    return all(np.array_equal(whole, half, equal_nan=True) for half in halves)


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
    recipe: _Recipe, begun: int, value: np.ndarray, gradients: Iterable[np.ndarray]
) -> list[list[np.ndarray]]:
    """What an optimizer makes of a variable with this first value: it and the state, each time."""
    optimizer = recipe.copy()
    leave_clipping_out(optimizer)
    with tf.device("CPU:0"):
        variable = keras.Variable(value, name="weight")
        optimizer.build([variable])
        optimizer.variables[0].assign(begun)  # its `iterations`, also where these are computed
        found = []
        for gradient in gradients:
            optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
            found.append([array.numpy() for array in (variable, *optimizer.variables)])
    return found
