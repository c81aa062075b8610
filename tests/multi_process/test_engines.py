"""The engines of several processes carry tensors as their contract says."""

from tests.multi_process.jobs import ALL, scenario
from tests.multi_process.scenarios import engines
from tests.step.engines import DTYPES, assert_equal


@scenario(engines.all_operations, ALL)
def test_processes_get_what_numpy_gives(found):
    for rank in found:
        assert sorted(rank) == sorted(DTYPES)
        for dtype in DTYPES:
            for replica in rank[dtype]:
                assert_equal(replica["found"], replica["expected"])
