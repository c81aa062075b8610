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
    for name, steps in sharding.KINDS.items():
        expected = sharding.reference(steps)
        for way in found[0][name]["weights"]:
            _assert_equal_bits([rank[name]["weights"][way] for rank in found])
            _assert_equal(found[0][name]["weights"][way], expected)
        for rank in found:
            assert rank[name]["own"] < 0.7 * rank[name]["all"]


@scenario(sharding.owned, ALL)
def test_whole_variables_belong_to_one_replica(found):
    for name in sharding.WHOLE:
        expected = sharding.reference_of_owned(name)
        for way in found[0][name]["weights"]:
            _assert_equal_bits([rank[name]["weights"][way] for rank in found])
            _assert_equal(found[0][name]["weights"][way], expected)
        own = [rank[name]["own"] for rank in found]
        assert sum(own) == found[0][name]["all"]
        assert max(own) < 0.7 * sum(own)
    _assert_equal_bits([rank["one"] for rank in found])
    _assert_equal(found[0]["one"], sharding.reference_of_one())


@scenario(sharding.not_a_number, ALL)
def test_all_ranks_stop_at_a_gradient_that_is_not_a_number(found):
    replicas = found[0]["replicas"]
    expected = {"epochs": 1, "iterations": 2, "finite": False}
    for rank in found:
        for kind in sharding.KINDS:
            of_kind = rank[kind]
            assert of_kind["tfdist"] == {**expected, "replicas": [replicas - 1]}
            assert of_kind["keras"] == {**expected, "replicas": []}


@scenario(sharding.averaged, ALL)
def test_averages_of_parts_become_the_weights(found):
    for kind in ("optimizer", "parameters"):
        _assert_equal_bits([rank[kind] for rank in found])
        _assert_equal(found[0][kind], sharding.reference_of_averages())


@scenario(sharding.own_loop, ALL)
def test_loops_of_ones_own_are_sharded(found):
    for kind in ("optimizer", "parameters"):
        _assert_equal_bits([rank[kind]["weights"] for rank in found])
        _assert_equal(found[0][kind]["weights"], sharding.reference_of_loop())
        assert len(found[0][kind]["parts"]) == 4
        assert all(shape[0] < 5 for shape in found[0][kind]["parts"])


@scenario(sharding.looked_at, ALL)
def test_weights_in_parts_are_seen_whole(found):
    _assert_equal_bits([rank["weights"] for rank in found])
    for rank in found:
        assert rank["own"] < 0.7 * rank["all"]
        assert rank["stopped"] == rank["best"]
        assert rank["set"] == 0.0
        assert "all of them must read the same weights" in rank["apart"]
        assert "changed the optimizer's state, or weights, in some ranks only" in rank["one"]
        for error in rank["reading"]:
            assert "reads" in error and "has ended its callbacks" in error
        assert all("have become different" in error for error in rank["mixed"])
        assert "cannot be exported" in rank["export"]
        assert rank["called"] < 1e-6


@scenario(sharding.read_in_batches)
def test_a_rank_that_reads_alone_in_a_callback_gets_an_error(found):
    for rank in found:
        assert len(rank["errors"]) == 2 * len(sharding.READ_IN)
        for where, error in rank["errors"].items():
            assert "reads" in error and "has ended its callbacks" in error, where
        assert rank["moved"] > 0  # it can be trained on


@scenario(sharding.loaded_in_callbacks, ALL)
def test_weights_that_callbacks_load_are_those_of_the_file(found, tmp_path):
    expected = sharding.reference_of_files(tmp_path)
    for name in ("averaged", "trained"):
        _assert_equal_bits([rank[name] for rank in found])
        _assert_equal(found[0][name], expected[name])
    for rank in found:
        assert abs(rank["loss"] - expected["loss"]) < 1e-6
        assert "changed the optimizer's state, or weights, in some ranks only" in rank["one"]


@scenario(sharding.restored_after_loading, ALL)
def test_a_backup_counts_more_than_what_was_loaded_before(found):
    expected = sharding.reference()
    for name in ("optimizer", "parameters"):
        _assert_equal_bits([rank[name] for rank in found])
        _assert_equal(found[0][name], expected)


@scenario(sharding.begun, ALL)
def test_weights_begin_with_the_values_of_rank_0(found):
    expected = sharding.reference_of_first_values()
    for rank in found:
        for name, value in expected.items():
            np.testing.assert_array_equal(rank["values"][name], value, err_msg=name)
        # Seeds travel. Where initializers differ, or need the whole weight, values do.
        whole = ["settings", "constants", "kinds", "function", "no function", "orthogonal"]
        assert rank["cut"] == whole
