"""Local steps among processes: by hand, wherever a user looks, resumed, in loops, and coded."""

import pytest

from tests.local_steps import checks
from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import local_steps


@scenario(local_steps.by_hands, ALL)
def test_local_steps_equal_the_same_by_hand(found):
    checks.by_hands(found)
    for rank in found:
        for name in local_steps.BY_HAND:
            assert rank[name]["inside"], "the condition in which replicas meet was not found"


@scenario(local_steps.resumed)
def test_resumed_training_is_the_same_to_the_bit(found):
    checks.resumed(found)


@scenario(local_steps.looked_at)
def test_weights_are_whole_wherever_a_user_can_look(found):
    checks.looked_at(found)


@pytest.mark.full
@scenario(local_steps.loop)
def test_a_loop_of_the_users_own_equals_the_same_by_hand(found):
    checks.loop(found)


@scenario(local_steps.after)
def test_synchronous_updates_come_first(found):
    checks.after(found)


@scenario(local_steps.compressed)
def test_differences_are_coded(found):
    checks.compressed(found)


@scenario(local_steps.drift, ALL)
def test_drift_is_that_of_the_replicas_weights(found):
    checks.drift(found)


@scenario(local_steps.all_that_steps_set)
def test_all_that_steps_set_equals_the_same_by_hand(found):
    checks.all_that_steps_set(found)


@pytest.mark.full
@scenario(local_steps.after_loading)
def test_no_synchronous_update_follows_a_round(found):
    checks.after_loading(found)


@scenario(local_steps.interrupted)
def test_an_interrupted_round_ends(found):
    checks.interrupted(found)


@scenario(local_steps.different_steps)
def test_ranks_at_different_steps_are_told(found):
    for rank in found:
        for error in rank.values():
            assert "not at the same step of a round" in error
            assert "updates and steps[0][0]: 1 in rank 0, 2 in rank 1" in error


@scenario(local_steps.logs)
def test_ranks_have_the_same_logs(found):
    checks.logs(found)
