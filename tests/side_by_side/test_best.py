"""The fastest system of tfdist beside the fastest peer, on each link."""

import pytest

from benchmarks.side_by_side import best, report
from benchmarks.side_by_side.runs import groups

PARAMETERS = 1_000_000


def run_of(system, number, **milliseconds):
    phases = [
        {"rate": rate, "links": [1.2e8] * 2, "seconds": [value / 1e3] * 3, "bytes": 4e6}
        for rate, value in milliseconds.items()
    ]
    common = {"work": "cnn", "hosts": 2, "batch": 16, "loopback": "", "round": number}
    found = {"phases": phases, "losses": [0.5], "peak_bytes": 1, "parameters": PARAMETERS}
    return {"system": system, **common, **found}


def rows_of(*runs):
    (group,) = groups(list(runs))
    assert {line.count("|") for line in best.table(group)} == {1 + len(best.HEAD)}
    return [line.strip("| ").split(" | ") for line in best.table(group)[2:]]


FLOORS = [run_of("keras", 0, unlimited=60), run_of("torch", 0, unlimited=50)]


@pytest.mark.parametrize(
    ("ours", "theirs", "reached"),
    [(70, 80, "yes"), (80, 80, "yes"), (70, 65, "yes, adds less"), (90, 65, "no")],
)
def test_what_is_reached(ours, theirs, reached):
    (row,) = rows_of(
        *FLOORS,
        run_of("tfdist-horovod", 0, unlimited=ours),
        run_of("ddp", 0, unlimited=theirs),
        run_of("ddp-fp16", 0, unlimited=theirs + 5),
    )
    assert row[:5] == ["no limit", "tfdist `horovod`", f"{ours}", "PyTorch DDP", f"{theirs}"]
    ratio, added = f"{ours / theirs:.2f}", (ours - 60, theirs - 50)
    assert row[5:] == [f"{ratio} ({ratio}–{ratio})", *(f"{a} ({a}–{a})" for a in added), reached]


def test_a_peer_whose_device_is_slower_has_no_excuse_for_tfdist():
    slow = run_of("torch", 0, unlimited=100)
    ours, theirs = run_of("tfdist-horovod", 0, unlimited=120), run_of("ddp", 0, unlimited=110)
    (row,) = rows_of(FLOORS[0], slow, ours, theirs)
    assert row[-1] == "no"


def test_a_ratio_is_of_one_round_and_a_link_without_both_has_no_row():
    runs = [*FLOORS, run_of("keras", 1, unlimited=60), run_of("torch", 1, unlimited=50)]
    runs += [run_of("tfdist-horovod", 0, unlimited=70, **{"10mbit": 90})]
    runs += [run_of("tfdist-horovod", 1, unlimited=140), run_of("ddp", 0, unlimited=70)]
    (row,) = rows_of(*runs, run_of("ddp", 1, unlimited=70))
    assert row[5] == "1.50 (1.00–2.00)"


def test_systems_that_were_not_measured_on_a_link_have_a_dash_there():
    runs = [*FLOORS, run_of("ddp", 0, unlimited=70)]
    (group,) = groups([*runs, run_of("tfdist-horovod", 0, unlimited=70, **{"10mbit": 90})])
    lines = "\n".join(report.section(group))
    assert "| PyTorch DDP | 70 (70–70) | 457 | – | – |" in lines
    assert "| PyTorch DDP | 4.00 | – | 0 |" in lines
