"""Traces of one group: none is used in another group, and nothing of them is kept.

A traced step has in it which part of a batch its rank takes, and the numbers of its operations; and
so has each `tf.function` that the step calls.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

from tfdist import compat

# The graphs of so many groups may wait for Python's collector, which comes rarely where there are
# as many objects as TensorFlow has, and takes a part of a second.
_GARBAGE = 8

_under_way: list[int] = []  # the generations for which something is traced, or run eagerly
_gradients: dict[int, set[str]] = {}  # what the traces of a generation have registered
_forgotten: list[int] = []  # the generations whose graphs may wait


@contextlib.contextmanager
def of_generation(generation: int) -> Iterator[None]:
    """In this context functions are traced for the group of this generation.

    What older ones have left is forgotten.
    """
    for older in [number for number in _gradients if number < generation]:
        compat.forget_custom_gradients(_gradients.pop(older))
        _forgotten.append(older)
    if len(_forgotten) >= _GARBAGE:
        gc.collect()
        _forgotten.clear()
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
