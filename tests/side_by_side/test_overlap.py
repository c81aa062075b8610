"""What a chart of one step tells of its overlap, from made-up notes."""

from __future__ import annotations

import pytest

from benchmarks.side_by_side import overlap

LOG = {
    "steps": [1.0, 2.0, 3.0, 3.5],
    "computed": [("b", 1.3), ("b", 2.3), ("a", 2.5), ("b", 3.2)],
    "arrived": [("a", 1.9), ("b", 2.4), ("a", 2.9), ("b", 3.4)],
    "sent": [(1.9, 100_000), (2.2, 100_000), (2.4, 2_100_000), (2.9, 5_100_000), (3.2, 6_000_000)],
}


def test_a_step_has_what_happened_between_two_ends():
    step = overlap.step_of("system", LOG)
    assert step.end == pytest.approx(1000)
    assert [path for path, _, _ in step.bars] == ["b", "a"]
    assert step.bars[0][1:] == pytest.approx((300, 400))
    assert step.computed == pytest.approx(500)


def test_what_is_told_is_what_came_before_the_end_of_the_backward_pass(tmp_path):
    step = overlap.step_of("system", LOG)
    assert overlap.told(step).endswith("Until then 1 of 2 sums are there and 2.0 of 5.0 MB sent.")
    overlap.draw([step, step], "title", tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 1000
