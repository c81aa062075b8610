"""A slow rank gets a smaller part of each batch, and training equals one device."""

import numpy as np
import pytest

from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import balance


@pytest.fixture(scope="module")
def expected():
    return balance.trained(balance.model_with(balance.Delay()))


@scenario(balance.slow_rank)
def test_a_slow_rank_computes_less_and_the_result_is_that_of_one_device(found, expected):
    for rank in found:
        assert rank["before"] == [0.5, 0.5]
        assert rank["after"] == found[0]["after"]
        assert rank["after"][1] < 0.35
        assert rank["weights"] == found[0]["weights"]
        for ours, theirs in zip(rank["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        for name in ("loss", "evaluated", "predicted"):
            np.testing.assert_allclose(rank[name], expected[name], rtol=0, atol=1e-5)


@scenario(balance.monitored)
def test_the_slowest_rank_and_what_it_costs_are_named(found, expected):
    for rank in found:
        assert rank["slowest"] == [1]
        assert rank["seconds"] == found[0]["seconds"]
        assert rank["seconds"][1] >= 8 * balance.SECONDS[1]
        assert rank["waiting"] == found[0]["waiting"]
        assert 0 < rank["waiting"][0] < 1
        for ours, theirs in zip(rank["weights"], expected["weights"], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@scenario(balance.parted)
def test_ranks_that_cut_in_different_places_fail_in_that_step(found):
    for rank in found:
        assert "have cut a global batch in different places" in rank["error"]
        assert "Received by replica, samples:] [8 4]" in rank["error"]


@scenario(balance.options_that_differ)
def test_all_ranks_must_balance_or_none(found):
    for rank in found:
        assert "balance: True in rank 0, False in rank 1" in rank["error"]
