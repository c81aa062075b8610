"""Sharded training among processes: equal to one device, also resumed, and each keeps a part."""

import numpy as np

from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import sharding


def _assert_equal(found, expected, tolerance=1e-6):
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def _assert_equal_bits(ranks):
    for weights in ranks[1:]:
        _assert_equal(weights, ranks[0], tolerance=0)


@scenario(sharding.resumed, ALL)
def test_training_goes_on_from_every_file(found):
    for name, steps in (("optimizer", 1), ("gradients", sharding.STEPS)):
        expected = sharding.reference(steps)
        for way in found[0][name]["weights"]:
            _assert_equal_bits([rank[name]["weights"][way] for rank in found])
            _assert_equal(found[0][name]["weights"][way], expected)
        for rank in found:
            assert rank[name]["own"] < 0.7 * rank[name]["all"]


@scenario(sharding.averaged, ALL)
def test_averages_of_parts_become_the_weights(found):
    _assert_equal_bits([rank["weights"] for rank in found])
    _assert_equal(found[0]["weights"], sharding.reference_of_averages())


@scenario(sharding.own_loop, ALL)
def test_loops_of_ones_own_are_sharded(found):
    _assert_equal_bits([rank["weights"] for rank in found])
    _assert_equal(found[0]["weights"], sharding.reference_of_loop())
    assert len(found[0]["parts"]) == 4
    assert all(shape[0] < 5 for shape in found[0]["parts"])
