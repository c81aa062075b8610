"""Looks for the largest size that fits."""

from __future__ import annotations

from collections.abc import Callable


def largest(fits: Callable[[int], bool], guess: int, most: int) -> tuple[int, bool]:
    """The largest size that fits, with few trials where the guess is good.

    The steps away from the guess double until one size fits and another does not; a step down goes
    at most half of the way. What is between the two is halved.

    Args:
        fits: whether a size fits; then all smaller ones do.
        guess: the first size to try, at least 1.
        most: how often `fits` is called at most.

    Returns:
        The largest size that was seen to fit, 0 for none, and whether the next one does not fit.
    """
    low, high = 0, None
    size, step = guess, max(1, guess // 8)
    for _ in range(most):
        if fits(size):
            low = size
        else:
            high = size
        if high is None:
            size = low + step
        elif high - low == 1:
            return low, True
        else:
            size = (low + high) // 2 if low else max(high // 2, high - step)
        step *= 2
    return low, False
