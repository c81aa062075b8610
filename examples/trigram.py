"""The baseline of char_lm.py: a character from the two before it, by counting."""

from __future__ import annotations

import numpy as np


def bits_per_character(train: np.ndarray, held_out: np.ndarray, characters: int) -> float:
    """The cross-entropy of an interpolated trigram model on `held_out[1:]`.

    Each order is smoothed with the next lower one by the method of Witten and Bell (1991): after a
    history seen n times with t different successors, the lower order gets the weight t / (n + t).
    The lowest order is smoothed with the uniform distribution.

    Args:
        train: numbers of the characters to count.
        held_out: numbers of the characters to predict, all but the first.
        characters: number of different characters.
    """
    counts = np.zeros((characters,) * 3)
    np.add.at(counts, (train[:-2], train[1:-1], train[2:]), 1)
    probability = np.full(characters, 1 / characters)
    for order_counts in (counts.sum((0, 1)), counts.sum(0), counts):
        seen = order_counts.sum(-1, keepdims=True)
        different = (order_counts > 0).sum(-1, keepdims=True)
        smoothed = (order_counts + different * probability) / np.maximum(seen + different, 1)
        probability = np.where(seen > 0, smoothed, probability)
    # The first prediction has one character of history only; let it repeat.
    history = np.concatenate([held_out[:1], held_out])
    predicted = probability[history[:-2], history[1:-1], history[2:]]
    return float(-np.log2(predicted).mean())
