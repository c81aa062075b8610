"""The benchmark of all-reduces runs, and checks its sums; no time is asserted."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from benchmarks.algorithms_ranks import Trial
from benchmarks.all_reduce import plan
from tests.benchmarks.running import between, run
from tests.traffic import network
from tfdist.engines.processes import OneProcess


class OwnMeter:
    """Measures nothing."""

    def measured(self, step):
        step()
        return 0.5, 0


@pytest.mark.parametrize("size", [1_000, 1_000_000])
def test_a_wrong_sum_is_never_measured(size):
    trial = Trial(OwnMeter(), size, OneProcess())
    assert trial.measured("right", lambda vector: vector) == (0.5, 0)
    for wrong in (
        lambda vector: 2 * vector,
        lambda vector: tf.tensor_scatter_nd_add(vector, [[7]], [1.0]),
        lambda vector: tf.concat(tf.split(vector, 2)[::-1], axis=0),
    ):
        with pytest.raises(RuntimeError, match="wrong sums .* numbers wrongly. Received: "):
            trial.measured("wrong", wrong)


@pytest.mark.full
def test_algorithms_are_measured_beside_tensorflows_ring(tmp_path):
    page, kept, rows = tmp_path / "page.md", tmp_path / "kept.json", tmp_path / "rows.md"
    page.write_text("before\n<!-- algorithms:begin -->\n<!-- algorithms:end -->\nafter\n")
    options = ["--links", "loopback", "--ranks", "2", "--sizes", "1000", "--rounds", "2"]
    options += ["--backends", "multi_worker", "--kept", str(kept), "--rows", str(rows)]
    options += ["--plot", str(tmp_path / "chart.png")]
    printed = run("algorithms", *options, "--update", str(page))
    (job,) = json.loads(kept.read_text())["jobs"]
    assert list(job["found"]["sizes"]["1000"]) == [plan.RING, plan.ONE_MESSAGE, *plan.ALGORITHMS]
    assert all(len(of["seconds"]) == 2 for of in job["found"]["sizes"]["1000"].values())
    assert all(f"`{name}`" in rows.read_text() for name in plan.ALGORITHMS)
    assert (tmp_path / "chart.png").stat().st_size > 1000
    assert printed.endswith(between(page, "algorithms"))
    # A second run measures nothing anew, and makes the same tables.
    assert run("algorithms", *options) == printed


@pytest.mark.full
@pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against())
def test_what_limited_links_carry_is_counted(tmp_path):
    kept = tmp_path / "kept.json"
    options = ["--links", "100mbit", "--ranks", "3", "--sizes", "400000", "--rounds", "1"]
    options += ["--backends", "multi_worker", "--algorithms", "direct", "tree"]
    run("algorithms", *options, "--kept", str(kept))
    (job,) = json.loads(kept.read_text())["jobs"]
    for name, found in job["found"]["sizes"]["400000"].items():
        stated = plan.schedule_of(name, 3).carried() * 400_000
        assert stated <= found["sent"][0] <= 1.1 * stated + 20_000, name
