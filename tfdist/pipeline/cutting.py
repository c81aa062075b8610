"""Where a chain of layers is cut into stages."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tfdist.arguments import shown


def balanced(weights: Sequence[int], stages: int) -> list[int]:
    """The first layers of all stages but the first, so that stages have equally many parameters.

    Of all ways to cut, the one with the smallest sum of squares. Each layer counts one more than
    its parameters, so that layers without parameters are divided too.

    Args:
        weights: the number of parameters of each layer.
        stages: how many there are, 1 to the number of layers.

    Returns:
        `stages - 1` numbers of layers, in order.
    """
    before = [0]
    for weight in weights:
        before.append(before[-1] + weight + 1)

    @functools.cache
    def best(end: int, count: int) -> tuple[int, tuple[int, ...]]:
        """The cost and the cuts of the first `end` layers in `count` stages."""
        if count == 1:
            return before[end] ** 2, ()
        options = []
        for start in range(count - 1, end):
            cost, cuts = best(start, count - 1)
            options.append((cost + (before[end] - before[start]) ** 2, (*cuts, start)))
        return min(options)

    return list(best(len(weights), stages)[1])


def given(cuts: object, names: Sequence[str], stages: int) -> list[int]:
    """The cuts that a user has given, as numbers of layers.

    Args:
        cuts: the name of the first layer of each stage but the first.
        names: those of all layers, in order.
        stages: how many there are.

    Raises:
        ValueError: unless there is one cut less than stages, each at another layer than the first,
            in order.
    """
    items = list(cuts) if isinstance(cuts, (list, tuple)) else [cuts]
    known = all(isinstance(cut, str) and cut in names for cut in items)
    places = [names.index(cut) for cut in items] if known else []
    if not known or len(places) != stages - 1 or [0, *places] != sorted({0, *places}):
        raise ValueError(
            f"`cuts` must be a list of the names of {stages - 1} layers, in order: the first layer "
            f"of each stage but the first. The layers are {list(names)}. "
            f"Received: cuts={shown(cuts)}"
        )
    return places
