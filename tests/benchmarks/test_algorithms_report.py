"""The tables of the algorithms, from made-up measurements."""

from __future__ import annotations

import pytest

from benchmarks.all_reduce import plan, report

SIZE = 1_000_000


def cell_of(direct: list[float], ring: list[float], horovod: list[float]) -> report.Cell:
    """Two blocks with the same rounds, but in the second one all takes twice as long."""
    cell = report.Cell("1gbit", 4)
    for block in range(2):
        slower = 1 + block

        def rounds(seconds, slower=slower):
            return {"seconds": [slower * s for s in seconds], "sent": [1_600_000] * len(seconds)}

        systems = {plan.RING: rounds(ring), "direct": rounds(direct), "tree": rounds(ring)}
        link = {"alpha": 1e-3, "beta": 8e-9}
        cell.add(block, {"link": link, "sizes": {str(SIZE): systems}})
        cell.add(block, {"sizes": {str(SIZE): {plan.HOROVOD: rounds(horovod)}}})
    return cell


def test_ratios_are_those_of_a_round_or_of_a_block():
    cell = cell_of([0.5, 1.0], [1.0, 4.0], [5.0, 10.0])
    assert cell.ratios(SIZE, "direct") == [0.5, 0.25] * 2
    assert cell.ratios(SIZE, plan.HOROVOD) == [2.0, 4.0] * 2


@pytest.mark.parametrize(
    ("direct", "wins"), [([0.5, 0.6, 0.7], ["direct"]), ([0.5, 0.6, 0.9], []), ([1.5] * 3, [])]
)
def test_who_wins_is_below_the_ring_by_more_than_noise(direct, wins):
    cell = cell_of(direct, [1.0] * 3, [1.0] * 3)
    assert report.winners(cell, SIZE) == wins
    assert report.summary([cell], 2, 3).count("**") == 2 * len(wins)


def test_too_few_rounds_win_nothing():
    assert report.winners(cell_of([0.5], [1.0], [1.0]), SIZE) == []
    cell = report.Cell("loopback", 2)
    systems = {name: {"seconds": [1.0] * 2, "sent": [0] * 2} for name in (plan.RING, "tree")}
    systems["tree"] = {"seconds": [0.1] * 2, "sent": [0] * 2}
    cell.add(0, {"sizes": {str(SIZE): systems}})
    assert report.winners(cell, SIZE) == []


def test_a_system_that_ran_in_one_block_only_is_compared_within_that_block():
    cell = report.Cell("1gbit", 4)
    for block, seconds in enumerate([1.0, 10.0]):
        systems = {plan.RING: {"seconds": [seconds] * 2, "sent": [0] * 2}}
        if block:
            systems["tree"] = {"seconds": [20.0, 30.0], "sent": [0, 0]}
        cell.add(block, {"sizes": {str(SIZE): systems}})
    assert cell.ratios(SIZE, "tree") == [2.0, 3.0]


def rows_of(text: str) -> dict[str, list[str]]:
    """The rows of the table, by algorithm, without the cells before it."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return {row[3]: row for row in rows if len(row) > 3}


def test_a_row_has_the_model_beside_what_was_measured():
    rows = rows_of(report.all_rows([cell_of([0.02] * 3, [0.04] * 3, [0.01] * 3)]))
    row = rows["`direct`"]
    assert row[:8] == ["1 Gbit/s", "4", "1 MB", "`direct`", "1.5", "1.6", "6", "6"]
    assert row[8:] == ["30 (20–40)", "14", "0.50 (0.50–0.50)"]


def test_what_did_not_run_has_the_time_of_the_model():
    rows = rows_of(report.all_rows([cell_of([0.02] * 3, [0.04] * 3, [0.01] * 3)]))
    assert rows["`all_to_all`"][4:] == ["3", "–", "3", "0", "–", "25", "–"]
    left_out = report.Cell("1gbit", 4)
    job = {"link": {"alpha": 0.0, "beta": 8e-9}, "sizes": {str(10**9): {}}}
    left_out.add(0, job)
    assert "| ≥ 12 s |" in report.summary([left_out], 1, 3)
    assert report.progress(left_out, job) == "  1000 MB, ms: left out"


def test_progress_has_the_model_in_brackets():
    cell = cell_of([0.02] * 3, [0.04] * 3, [0.01] * 3)
    systems = {"direct": {"seconds": [0.02, 0.03, 0.04], "sent": [0] * 3}}
    assert report.progress(cell, {"sizes": {str(SIZE): systems}}) == "  1 MB, ms: direct 30 (14)"
