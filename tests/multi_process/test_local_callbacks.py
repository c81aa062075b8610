"""Callbacks in the middle of a round of local steps, among processes."""

import pytest

from tests.local_steps import callback_checks
from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import local_callbacks


@scenario(local_callbacks.refused, ALL)
def test_weights_are_not_set_within_a_round(found):
    callback_checks.refused(found)


# On a busy machine rank 0 may meet the first operation of a step, and is told in Horovod's words.
@pytest.mark.full
@scenario(local_callbacks.one_saves, ("horovod-2",))
def test_ranks_are_told_what_one_must_not_do_alone(found):
    first, *others = [rank["error"] for rank in found]
    assert "ValueError: The ranks are not at the same step of a round of local steps" in first
    assert "save, evaluate or end a round after the same step in all ranks" in first
    for error in others:
        assert error == first or "RuntimeError: Another rank does something else" in error
        assert "local" in error


@scenario(local_callbacks.allowed, ALL)
def test_a_round_ends_where_the_model_is_saved(found):
    callback_checks.allowed(found)
