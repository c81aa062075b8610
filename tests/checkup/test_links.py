"""The order in which pairs of ranks are measured."""

import itertools

import pytest

from tfdist.checkup.links import rounds


@pytest.mark.parametrize("size", [2, 3, 8, 9, 12, 33])
def test_each_pair_is_measured_once(size):
    pairs = [pair for pairs in rounds(size) for pair in pairs]
    assert sorted(pairs) == list(itertools.combinations(range(size), 2))


@pytest.mark.parametrize("size", [9, 12, 33])
def test_pairs_of_one_round_have_no_rank_in_common(size):
    found = rounds(size)
    assert len(found) <= size
    for pairs in found:
        ranks = [rank for pair in pairs for rank in pair]
        assert len(ranks) == len(set(ranks)) >= size - 1
