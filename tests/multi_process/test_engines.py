"""The engines of several processes carry tensors as their contract says."""

from tests.multi_process.checks import assert_sums_of_gradients
from tests.multi_process.jobs import ALL, MULTI_WORKER, PAIRS, scenario
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
