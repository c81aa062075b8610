"""The baseline of the character model, against the formula written out."""

import math

import numpy as np
import pytest

from examples import trigram


def _probability(train, history, character, characters):
    """Witten-Bell interpolation, one history at a time."""
    if history is None:
        return 1 / characters
    lower = _probability(train, history[1:] if history else None, character, characters)
    size = len(history) + 1
    # Counts of every order come from the trigrams, as in the model.
    windows = [train[i + 3 - size : i + 3] for i in range(len(train) - 2)]
    successors = [window[-1] for window in windows if window[:-1] == history]
    if not successors:
        return lower
    different = len(set(successors))
    return (successors.count(character) + different * lower) / (len(successors) + different)


def test_bits_follow_the_formula():
    random = np.random.default_rng(0)
    train, held_out = random.integers(0, 4, 60), random.integers(0, 5, 20)
    text = [int(held_out[0]), *map(int, held_out)]
    expected = [
        -math.log2(_probability(train.tolist(), text[i - 2 : i], text[i], 5))
        for i in range(2, len(text))
    ]
    assert trigram.bits_per_character(train, held_out, 5) == pytest.approx(np.mean(expected))


def test_text_that_repeats_itself_costs_almost_nothing():
    train = np.tile([0, 1, 2, 3], 1000)
    assert trigram.bits_per_character(train, np.tile([0, 1, 2, 3], 50), 4) < 0.05


def test_unseen_characters_have_a_finite_cost():
    assert np.isfinite(trigram.bits_per_character(np.zeros(50, int), np.full(10, 3), 4))
