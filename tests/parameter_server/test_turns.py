"""How many batches a worker may take, and who counts as the slowest."""

import pytest

from tfdist.parameter_server.chief.turns import Limits, Turns
from tfdist.staleness import SSP


def turns(workers=2, may_start=lambda ahead, under_way: True, lost=(), **limits):
    defaults = {"budget": None, "per_item": 1, "first_item": 1, "max_pending": workers}
    return Turns(workers, Limits(may_start, **(defaults | limits)), set(lost))


def finish(counts, worker, items):
    for _ in range(items):
        counts.begin(0)
        counts.finish(worker)


def test_the_budget_is_divided_into_items_of_which_the_last_may_be_smaller():
    counts = turns(budget=8, per_item=3, first_item=1)
    assert [counts.begin(0) for _ in range(4)] == [1, 3, 3, 1]
    assert not counts.is_something_left_for(0)


def test_batches_that_were_not_taken_can_be_taken_again():
    counts = turns(budget=4, per_item=4, first_item=4)
    assert counts.begin(0) == 4
    counts.give_back(3)
    assert counts.begin(0) == 3


@pytest.mark.parametrize("absent", ["lost", "without data"])
def test_who_is_not_there_is_waited_for_by_nobody_and_comes_back_level(absent):
    counts = turns(3, SSP(1).may_start)
    if absent == "lost":
        counts.lose(0)
    else:
        counts.find_no_data(0)
    finish(counts, 1, 5)
    finish(counts, 2, 4)
    assert counts.may_begin(1)
    if absent == "lost":
        assert counts.is_back(0)
    else:
        assert not counts.is_something_left_for(0)
        counts.let_all_ask()
        assert counts.is_something_left_for(0)
    assert counts.may_begin(1)
    finish(counts, 1, 1)
    assert not counts.may_begin(1)
    assert counts.may_begin(0)


def test_a_run_is_over_when_nothing_is_under_way_and_nothing_can_come():
    counts = turns(budget=1)
    assert not counts.is_over()
    counts.begin(0)
    assert not counts.is_over()
    counts.drop()
    assert counts.is_over()
    counts.give_back(1)
    assert not counts.is_over()
    counts.find_no_data(0)
    counts.lose(1)
    assert counts.is_over()


def test_a_worker_that_was_not_lost_is_not_back():
    lost = {1}
    counts = Turns(2, Limits(lambda ahead, under_way: True, None, 1, 1, 2), lost)
    assert not counts.is_back(0)
    assert not counts.all_are_lost()
    counts.lose(0)
    assert counts.all_are_lost()
    assert counts.is_back(1)
    assert lost == {0}
