"""The benchmark of all-reduces runs; no time is asserted."""

from __future__ import annotations

import json

import pytest

from benchmarks.all_reduce import plan
from tests.benchmarks.running import between, run


@pytest.mark.full
def test_algorithms_are_measured_beside_tensorflows_ring(tmp_path):
    page, result, rows = tmp_path / "page.md", tmp_path / "result.json", tmp_path / "rows.md"
    page.write_text("before\n<!-- algorithms:begin -->\n<!-- algorithms:end -->\nafter\n")
    options = ["--links", "loopback", "--ranks", "2", "--sizes", "1000", "--rounds", "2"]
    options += ["--backends", "multi_worker", "--blocks", "1", "--rows", str(rows)]
    options += ["--plot", str(tmp_path / "chart.png")]
    printed = run("algorithms", *options, "--json", str(result), "--update", str(page))
    (cell,) = json.loads(result.read_text())
    assert list(cell["rounds"]["1000"]) == [plan.RING, plan.ONE_MESSAGE, *plan.ALGORITHMS]
    assert all(len(rounds) == 2 for rounds in cell["rounds"]["1000"].values())
    assert all(f"`{name}`" in rows.read_text() for name in plan.ALGORITHMS)
    assert (tmp_path / "chart.png").stat().st_size > 1000
    assert printed.endswith(between(page, "algorithms"))
