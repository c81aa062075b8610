"""Traces of one group: none is used in another group, and nothing of them is kept.

A traced step has in it which part of a batch its rank takes, and the numbers of its operations; and
so has each `tf.function` that the step calls.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from tfdist import compat

_under_way: list[int] = []  # the generations for which something is traced, or run eagerly
_gradients: dict[int, set[str]] = {}  # what the traces of a generation have registered


@contextlib.contextmanager
def of_generation(generation: int) -> Iterator[None]:
    """In this context functions are traced for the group of this generation.

    What older ones have left is forgotten.
    """
    older = [number for number in _gradients if number < generation]
    for number in older:
        compat.forget_custom_gradients(_gradients.pop(number))
    if older:
        gc.collect()  # by itself it comes rarely, where there are as many objects as TensorFlow has
    before = compat.custom_gradients()
    _under_way.append(generation)
    try:
        yield
    finally:
        _under_way.pop()
        new = compat.custom_gradients() - before
        _gradients.setdefault(generation, set()).update(new)


def _generation() -> int | None:
    return _under_way[-1] if _under_way else None


compat.hook_traces(_generation)
