"""The engines of several processes carry tensors as their contract says."""

import numpy as np
import pytest

from tests.multi_process.checks import assert_sums_of_gradients
from tests.multi_process.jobs import ALL, EIGHT, FOUR, MULTI_WORKER, PAIRS, scenario
from tests.multi_process.scenarios import engines
from tests.step.engines import DTYPES, assert_equal


@scenario(engines.all_operations, ALL)
def test_processes_get_what_numpy_gives(found):
    assert_as_numpy(found)


@scenario(engines.all_operations_of_a_ring, (*MULTI_WORKER, "multi_worker-3", "multi_worker-2x2"))
def test_a_ring_gives_what_numpy_gives(found):
    assert_as_numpy(found)


def assert_as_numpy(found):
    """Compares with NumPy's results."""
    for rank in found:
        assert sorted(rank) == sorted(DTYPES)
        for dtype in DTYPES:
            for replica in rank[dtype]:
                assert_equal(replica["found"], replica["expected"])


@scenario(engines.gradients_of_sums, ALL)
def test_the_gradient_of_a_sum_is_the_sum_of_the_gradients(found):
    assert_sums_of_gradients(found)


@scenario(engines.small_sums, (*MULTI_WORKER, "multi_worker-2x2"))
def test_small_sums_that_cannot_be_gathered_travel_in_a_ring(found):
    replicas = sum(len(rank["eager"]) for rank in found)
    offset = replicas * (replicas - 1) // 2
    expected = [replicas * number + offset for number in range(8)]
    for rank in found:
        for parts in rank.values():
            assert parts == [expected] * len(parts)


@scenario(engines.empty_sums, (*PAIRS, "multi_worker-3", "horovod-3"))
def test_the_sum_of_tensors_without_elements_has_none(found):
    assert found == [[0, 3]] * len(found)


@scenario(engines.joined_rows, ("horovod-2", "horovod-3"))
def test_rows_of_all_ranks_arrive_bit_by_bit(found):
    for number, counts in enumerate(engines.ROWS):
        given = [engines.rows_of(rank, counts) for rank in range(len(found))]
        expected = [np.concatenate(parts).tobytes().hex() for parts in zip(*given)]
        assert [rank[number] for rank in found] == [expected] * len(found)


@scenario(engines.parts_with_odd_numbers, ("horovod-2", "multi_worker-2", "horovod-3"))
def test_parts_of_all_ranks_arrive_bit_by_bit(found):
    parts = [engines.ODD if rank % 2 else -engines.ODD for rank in range(len(found))]
    assert found == [np.concatenate(parts).tobytes().hex()] * len(found)


@scenario(engines.exchanged_in_turn, ("horovod-2",))
def test_exchanges_may_have_to_wait_for_each_other(found):
    expected = [[2 * (i + 10 * number) + 1 for i in range(8)] for number in range(6)]
    for rank in found:
        assert rank["sums"] == expected
        assert rank["waits"] >= 10


_OF_SIZES = (*MULTI_WORKER, "multi_worker-3", EIGHT)


@scenario(engines.sums_of_sizes, _OF_SIZES)
def test_sums_of_all_sizes_have_the_same_bits_on_all_ranks(found):
    for rank in found[1:]:
        assert [one["sums"] for one in rank] == [one["sums"] for one in found[0]]
    for one in found[0]:
        assert one["error"] <= 1e-5
        assert one["gradient"] == 2 * [len(found)]


@scenario(engines.sums_of_sizes, _OF_SIZES)
def test_the_way_of_a_sum_depends_on_its_size(found):
    ranks = len(found)
    gather, ring = [["CollectiveGatherV2", ranks]], [["CollectiveReduceV2", ranks]]
    doubling = 3 * [["CollectiveGatherV2", 2]]
    # bytes: 4, 32, 8000, 9000, 32000, 40000, 160000, 170000
    expected = [ring, gather, gather, ring, ring, ring, ring, ring]
    if ranks == 2:
        expected = [*7 * [gather], ring]
    elif ranks == 8:
        expected[3:5] = doubling, doubling
    for rank in found:
        assert [one["operations"] for one in rank] == expected
        assert [one["operations of the gradient"] for one in rank] == expected


@scenario(engines.sums_by_doubling, (*MULTI_WORKER, FOUR))
def test_doubling_gives_the_sum_with_the_same_bits_on_all_ranks(found):
    for rank in found:
        assert rank["sums"] == found[0]["sums"]
        assert rank["error"] <= 1e-6
        ranks = len(found)
        assert rank["in a loop"] == ranks * (ranks + 1) / 2 * ranks**4
        assert rank["of two strategies"] == [[ranks], [100 * ranks]]


@pytest.mark.full
@scenario(engines.trained_in_small_buckets, (EIGHT,))
def test_training_that_sums_by_doubling_equals_one_device(found):
    for rank in found:
        assert rank["bits"] == found[0]["bits"]
        assert rank["away"] <= 1e-6


@scenario(engines.swaps, ALL)
def test_two_ranks_of_a_pair_get_what_the_other_one_gives(found):
    pairs = len(found) * (len(found) - 1) // 2
    for rank, own in enumerate(found):
        assert len(own) == 3 * pairs
        for pair, got in own:
            other = pair[1 - pair.index(rank)] if rank in pair else None
            assert got == ([] if other is None else [10.0 * other + n for n in range(3)])


@scenario(engines.sum_in_a_condition, (*PAIRS, "multi_worker-2x2"))
def test_a_sum_in_a_condition_of_each_rank_is_refused(found):
    for rank in found:
        assert "RuntimeError: `merge_call` called while defining a new" in rank
