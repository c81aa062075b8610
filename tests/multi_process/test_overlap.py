"""The exchange runs beside the backward pass."""

from tests.multi_process.jobs import scenario
from tests.multi_process.scenarios import overlap


@scenario(overlap.sums_within_the_backward_pass)
def test_sums_of_last_layers_arrive_before_the_first_layer_has_its_gradient(found):
    for rank in found:
        assert rank["arrived"]
        for arrived in rank["arrived"]:
            assert len(arrived) == 4, arrived


@scenario(overlap.sums_within_the_backward_pass)
def test_no_part_of_an_update_comes_before_the_end_of_the_backward_pass(found):
    for rank in found:
        assert rank["updated"]
        for before, updated in rank["updated"]:
            assert len(updated) == 5
            assert before == []
