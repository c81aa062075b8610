"""What objects of a rank have found out from weights, for a rank that joins in training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.elastic import transfer


class Belongings:
    """The numbers that objects, such as callbacks, keep in their attributes.

    A rank that follows the journal of the others comes to the same results, but has not seen their
    weights. So what may have been made of weights is handed over: attributes that consist of
    fractions and arrays. Others, such as counts, paths and open files, each rank has for itself.
    """

    def __init__(self) -> None:
        self.objects: Sequence[object] = ()

    def given(self) -> dict[str, list[dict[str, Any]]]:
        """What this rank gives: for each class, the numbers of its objects."""
        return {
            name: [_numbers(vars(one)) for one in objects]
            for name, objects in _by_class(self.objects).items()
        }

    def take(self, given: dict[str, list[dict[str, Any]]]) -> None:
        """Takes over what another rank has given.

        Objects of a class are matched by their order. Where ranks have different numbers of them,
        nobody knows which ones belong together, and each keeps its own.
        """
        for name, objects in _by_class(self.objects).items():
            found = given.get(name, [])
            if len(found) == len(objects):
                for one, numbers in zip(objects, found):
                    _take(vars(one), numbers)


def _by_class(objects: Sequence[object]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for one in objects:
        name = f"{type(one).__module__}.{type(one).__qualname__}"
        found.setdefault(name, []).append(one)
    return found


def _take(attributes: dict[str, Any], numbers: dict[str, Any]) -> None:
    """Sets attributes; lists and dicts stay the same objects, which others may know."""
    for name, sent in numbers.items():
        value, own = transfer.received(sent), attributes.get(name)
        if type(own) is list and type(value) is list:
            own[:] = value
        elif type(own) is dict and type(value) is dict:
            own.clear()
            own.update(value)
        else:
            attributes[name] = value


def _numbers(attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        name: transfer.without_tensors(value)
        for name, value in attributes.items()
        if _is_of_numbers(value) and any(map(_is_fractional, tf.nest.flatten(value)))
    }


def _is_of_numbers(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_of_numbers, value))
    if isinstance(value, dict):
        keys_are_names = all(isinstance(key, str) for key in value)
        return keys_are_names and all(map(_is_of_numbers, value.values()))
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biuf"
    if isinstance(value, tf.Tensor):
        return hasattr(value, "numpy")  # none of a graph
    return isinstance(value, (bool, int, float, np.number))


def _is_fractional(leaf: object) -> bool:
    return not isinstance(leaf, (bool, int))
