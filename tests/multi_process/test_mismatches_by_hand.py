"""Ranks that differ outside of `fit`: loops of the user's own, single batches, weights."""

import pytest

from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import mismatches_by_hand as mismatches
from tests.multi_process.test_mismatches import named


@pytest.mark.full
@pytest.mark.parametrize("name", mismatches.LOOPS)
@scenario(mismatches.loops)
def test_data_that_differ_in_own_loops_are_named(found, name):
    named(found, name, mismatches.LOOPS, "RuntimeError: The ranks do not read the same data.")


@pytest.mark.parametrize("name", mismatches.BATCHES)
@scenario(mismatches.batches)
def test_single_batches_that_differ_are_named_before_the_step(found, name):
    named(found, name, mismatches.BATCHES)


@pytest.mark.parametrize("name", mismatches.WEIGHTS)
@scenario(mismatches.weights)
def test_weights_that_differ_are_noticed_before_they_are_used(found, name):
    named(found, name, mismatches.WEIGHTS, "RuntimeError: The ranks' weights")


@pytest.mark.full
@pytest.mark.parametrize("name", mismatches.HARMLESS)
@scenario(mismatches.harmless)
def test_what_is_harmless_outside_of_fit_is_let_through(found, name):
    assert [rank[name] for rank in found] == ["", ""]
