"""Vectors that reducers sum, and what they refuse."""

import numpy as np
import pytest

import tfdist
from tests.devices import DEVICES
from tests.multi_process.jobs import REDUCED, scenario
from tests.multi_process.scenarios import reducers
from tfdist.cluster import Cluster
from tfdist.local import LocalSGD
from tfdist.options import Options
from tfdist.strategies.multi_worker.reducers.joining import joined_reducers


@scenario(reducers.sums, REDUCED)
def test_sums_are_numpys_and_are_told_once(found):
    for rank in found:
        for dtype, of_lengths in rank["sums"].items():
            for length, total in zip(reducers.LENGTHS, of_lengths, strict=True):
                own = [reducers.values(number, length, dtype) for number in range(len(found))]
                np.testing.assert_array_equal(total, np.sum(own, axis=0, dtype=dtype))
        assert rank["told"] >= len(reducers.DTYPES) * len(reducers.LENGTHS)


@pytest.mark.full
@scenario(reducers.rounded, REDUCED[1:])
def test_sums_of_halves_are_rounded_once(found):
    for rank in found:
        np.testing.assert_array_equal(rank["sum"], np.float16(2050))


@scenario(reducers.in_loops, REDUCED)
def test_a_function_sums_in_a_loop_as_it_does_alone_and_sums_have_gradients(found):
    expected = reducers.expected_in_loops(len(found))
    for rank in found:
        for name, value in expected.items():
            np.testing.assert_array_equal(rank[name], value, err_msg=name)


@scenario(reducers.nested, REDUCED)
def test_a_function_that_only_some_ranks_trace_again_sums_the_same(found):
    rows = 4 * len(found) - 1
    assert [rank["sums"] for rank in found] == [[10.0 * rows, rows]] * len(found)


@scenario(reducers.trained, REDUCED)
def test_fit_trains_what_one_device_trains(found):
    model = reducers.model_of()
    reducers.fit(model)
    for rank in found:
        assert rank["engine"] == "ReducersEngine"
        for compression, allowed in (("None", 1e-6), ("fp16", 1e-3)):
            own, first = rank["weights"][compression], found[0]["weights"][compression]
            assert all(map(np.array_equal, own, first))
            for ours, theirs in zip(own, model.get_weights(), strict=True):
                np.testing.assert_allclose(ours, theirs, atol=allowed)


@pytest.mark.full
@scenario(reducers.low_rank, REDUCED)
def test_low_rank_and_error_feedback_are_those_without_reducers(found):
    devices = DEVICES[: len(found)]
    expected, _ = reducers.trained_at_low_rank(
        tfdist.MirroredStrategy(devices, compression=reducers.LOW_RANK)
    )
    exact, _ = reducers.trained_at_low_rank(tfdist.MirroredStrategy(devices))
    for rank in found:
        assert rank["told"] >= 2, "both thin matrices go through reducers"
        assert len(rank["kept"]) == 2 and all(np.abs(kept).max() > 0 for kept in rank["kept"])
        assert all(map(np.array_equal, rank["weights"], found[0]["weights"]))
        for ours, theirs in zip(rank["weights"], expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
    assert max(np.abs(a - b).max() for a, b in zip(expected, exact)) > 1e-3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sharding": "optimizer"}, "`sharding` does not do.*Received: sharding='optimizer'"),
        ({"local": LocalSGD(4)}, "`local` does not do"),
        ({"exchange": "ring"}, "`exchange` must be 'auto'.*Received: exchange='ring', 2 reducers"),
    ],
)
def test_what_reducers_cannot_do_is_refused(options, text):
    jobs = {"worker": ("a:1", "b:1"), "reducer": ("c:1", "d:1")}
    with pytest.raises(ValueError, match=text):
        joined_reducers(Cluster(jobs, "worker", 0), Options(**options))


def test_reducers_of_a_single_worker_are_refused():
    cluster = Cluster({"worker": ("a:1",), "reducer": ("b:1",)}, "worker", 0)
    with pytest.raises(ValueError, match="Received: 1 reducers, 1 worker"):
        joined_reducers(cluster, Options())


def test_a_cluster_without_reducers_has_none():
    assert joined_reducers(Cluster({"worker": ("a:1", "b:1")}, "worker", 0), Options()) == 0
    assert joined_reducers(None, Options()) == 0
