"""Ranks that differ: all of them are told what differs, or it does no harm."""

import pytest

from tests.multi_process import checks
from tests.multi_process.jobs import scenario
from tests.multi_process.reference import OneDevice
from tests.multi_process.scenarios import mismatches


def named(found, name, differences, start="ValueError: "):
    """Asserts that all ranks raise the same error, with the words that belong to `name`."""
    for rank in found:
        assert rank[name].startswith(start)
        assert differences[name][1] in rank[name]
        assert rank[name] == found[0][name]
    checks.trained(found, OneDevice().train(1))  # after all of them


@pytest.mark.parametrize("name", mismatches.MODELS)
@scenario(mismatches.models)
def test_models_that_differ_are_named_before_the_first_step(found, name):
    named(found, name, mismatches.MODELS)


@pytest.mark.full
@pytest.mark.parametrize("name", mismatches.COMPILED)
@scenario(mismatches.compiled)
def test_what_is_compiled_that_differ_are_named_before_the_first_step(found, name):
    named(found, name, mismatches.COMPILED)


@pytest.mark.parametrize("name", mismatches.STRATEGIES)
@scenario(mismatches.strategies)
def test_strategies_that_differ_are_named_before_the_first_step(found, name):
    named(found, name, mismatches.STRATEGIES)


@pytest.mark.parametrize("name", mismatches.RUNS)
@scenario(mismatches.runs)
def test_runs_that_differ_are_named_before_the_first_step(found, name):
    named(found, name, mismatches.RUNS)


@pytest.mark.full
@pytest.mark.parametrize("name", mismatches.MORE_RUNS)
@scenario(mismatches.more_runs)
def test_more_runs_that_differ_are_named_before_the_first_step(found, name):
    named(found, name, mismatches.MORE_RUNS)


@pytest.mark.full
@pytest.mark.parametrize("name", mismatches.ENDS)
@scenario(mismatches.ends)
def test_data_that_end_in_one_rank_are_named(found, name):
    named(found, name, mismatches.ENDS, "RuntimeError: The ranks do not read the same data.")


@pytest.mark.parametrize("name", mismatches.CONTENTS)
@scenario(mismatches.contents)
def test_other_data_in_one_rank_are_named(found, name):
    named(found, name, mismatches.CONTENTS, "RuntimeError: The ranks do not read the same data.")


@pytest.mark.full
@pytest.mark.parametrize("name", mismatches.HARMLESS)
@scenario(mismatches.harmless)
def test_what_is_harmless_changes_nothing(found, name):
    checks.trained(found, OneDevice().train(1), state=name)


@pytest.mark.full
@pytest.mark.parametrize("name", mismatches.MORE_HARMLESS)
@scenario(mismatches.more_harmless)
def test_more_that_is_harmless_changes_nothing(found, name):
    checks.trained(found, OneDevice().train(1), state=name)


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["reshuffled", "more steps than data", "unknown length", "fewer steps than data"]
)
@scenario(mismatches.one_pass_after_the_other)
def test_equal_data_are_taken_as_equal(found, name):
    assert [rank[name] for rank in found] == ["", ""]
