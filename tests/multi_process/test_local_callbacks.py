"""Callbacks in the middle of a round of local steps, among processes."""

from tests.local_steps import callback_checks
from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import local_callbacks


@scenario(local_callbacks.refused, ALL)
def test_weights_are_not_set_within_a_round(found):
    callback_checks.refused(found)


@scenario(local_callbacks.allowed, ALL)
def test_a_round_ends_where_the_model_is_saved(found):
    callback_checks.allowed(found)
