"""The exchange runs beside the backward pass."""

from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import overlap


def _assert_arrived(found):
    for rank in found:
        assert rank["arrived"]
        for arrived in rank["arrived"]:
            assert len(arrived) == 4, arrived


def _assert_updated_later(found):
    for rank in found:
        assert rank["updated"]
        for before, updated in rank["updated"]:
            assert len(updated) == 5
            assert before == []


@scenario(overlap.sums_within_the_backward_pass)
def test_sums_of_last_layers_arrive_before_the_first_layer_has_its_gradient(found):
    _assert_arrived(found)


@scenario(overlap.sums_within_the_backward_pass)
def test_no_part_of_an_update_comes_before_the_end_of_the_backward_pass(found):
    _assert_updated_later(found)


@scenario(overlap.parts_within_the_backward_pass)
def test_parts_of_sums_arrive_before_the_end_of_the_backward_pass(found):
    _assert_arrived(found)
    _assert_updated_later(found)
