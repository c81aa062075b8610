"""What objects of a rank have found out from weights, for a rank that joins in training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

_Key = tuple[str, int]


class Belongings:
    """The numbers that objects, such as callbacks, keep in their attributes.

    A rank that follows the journal of the others comes to the same results, but has not seen their
    weights. So what may have been made of weights is handed over: attributes that consist of
    fractions and arrays. Others, such as counts, paths and open files, each rank has for itself.
    """

    def __init__(self) -> None:
        self.objects: Sequence[object] = ()

    def given(self) -> dict[_Key, dict[str, Any]]:
        """What this rank gives."""
        return {key: _numbers(vars(one)) for key, one in _named(self.objects)}

    def take(self, given: dict[_Key, dict[str, Any]]) -> None:
        """Takes over what another rank has given; objects are matched by class and order."""
        for key, one in _named(self.objects):
            vars(one).update(given.get(key, {}))


def _named(objects: Iterable[object]) -> list[tuple[_Key, object]]:
    found: dict[_Key, object] = {}
    for one in objects:
        name = f"{type(one).__module__}.{type(one).__qualname__}"
        found[name, sum(key[0] == name for key in found)] = one
    return list(found.items())


def _numbers(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tf.nest.map_structure(_as_array, value)
        for name, value in attributes.items()
        if _is_of_numbers(value) and any(map(_is_fractional, tf.nest.flatten(value)))
    }


def _is_of_numbers(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_of_numbers, value))
    if isinstance(value, dict):
        return all(map(_is_of_numbers, value.values())) and all(
            isinstance(key, str) for key in value
        )
    return isinstance(value, (bool, int, float, np.ndarray, np.number, tf.Tensor))


def _is_fractional(leaf: object) -> bool:
    return not isinstance(leaf, (bool, int))


def _as_array(leaf: object) -> Any:
    return leaf.numpy() if isinstance(leaf, tf.Tensor) else leaf
