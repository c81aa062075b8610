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
        link = {"alpha": 1e-3, "beta": 8e-9, "pings": {}}
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


def test_a_row_has_the_model_beside_what_was_measured():
    text = report.all_rows([cell_of([0.02] * 3, [0.04] * 3, [0.01] * 3)])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    (row,) = [row for row in rows if row and row[3] == "`direct`"]
    assert row[:7] == ["1 Gbit/s", "4", "1 MB", "`direct`", "1.5", "1.6", "6"]
    assert row[7:] == ["30 (20–40)", "14", "0.50 (0.50–0.50)"]
