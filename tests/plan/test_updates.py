"""How few updates an epoch may have: no fewer than 20, or than those of one device."""

import dataclasses

import pytest

from tests.plan.test_candidates import SIZE, planner, predictions
from tfdist.plan.candidates import recommend, with_few_updates
from tfdist.plan.prediction import Candidate


@pytest.fixture
def strong():
    return dataclasses.replace(planner(1.25e9), strong=True)


def test_a_batch_that_is_divided_makes_no_fewer_updates(strong):
    few = 64 * 5
    told = recommend(strong.alone(), predictions(strong), 0.1, samples=few)
    assert told.workers == 8 and "updates" not in told.reason
    weak = planner(1.25e9)
    told = recommend(weak.alone(), predictions(weak), 0.1, samples=few)
    assert told.workers == 1 and "updates" in told.reason


def test_workers_that_fit_are_told_of_where_one_device_breaks_the_rule_alike(strong):
    needed = recommend(strong.alone(), predictions(strong, (8,)), 0.1, 2.3 * SIZE, samples=64)
    assert needed.workers == 8 and "one device has too little memory" in needed.reason


@pytest.mark.parametrize(("samples", "few"), [(20 * 128, []), (20 * 128 - 1, [2]), (64, [2])])
def test_workers_with_batches_of_their_own_make_fewer(samples, few):
    made = planner(1.25e9)
    two = made.predict(Candidate("multi_worker"), 2)
    assert with_few_updates(made.alone(), [two], samples) == few
