"""Efficiencies of several numbers of hosts, from made-up runs."""

from __future__ import annotations

import pytest

from benchmarks.side_by_side import plans, scaling
from benchmarks.side_by_side.runs import groups


def run_of(system: str, hosts: int, batch: int, milliseconds: float):
    phase = {"rate": "1gbit", "links": [1.2e8], "seconds": [milliseconds / 1e3] * 3, "bytes": 1e6}
    run = {"work": "mlp", "hosts": hosts, "batch": batch, "loopback": "", "round": 0}
    found = {"phases": [phase], "losses": [1.0], "peak_bytes": 1, "parameters": 1}
    return {"system": system, **run, **found}


def row(runs: list, kind: str, cores: int | None = 2) -> list[str]:
    """The only row of the table that comes after the heading of a kind of scaling."""
    lines = scaling.sections(groups(runs), cores)
    start = next(number for number, line in enumerate(lines) if f"{kind} scaling" in line)
    return [cell.strip() for cell in lines[start + 7].split("|")[1:-1]]


ALONE = run_of("tf-keras", 2, 64, 100)


def test_weak_efficiency_is_the_step_of_one_device_by_that_of_many():
    runs = [ALONE, run_of("horovod", 2, 64, 125), run_of("horovod", 4, 64, 400)]
    assert row(runs, "weak")[2:] == ["640", "80 %", "25 %"]


def test_strong_efficiency_shares_the_batch_of_one_device():
    runs = [ALONE, run_of("horovod", 2, 32, 100), run_of("horovod", 4, 16, 50)]
    assert row(runs, "strong")[2:] == ["640", "50 %", "50 %"]


def test_a_batch_that_cannot_be_shared_evenly_counts_as_what_it_is():
    runs = [ALONE, run_of("horovod", 3, 21, 100)]
    # 63 samples in 100 ms, by 3 * 640.
    assert row(runs, "strong")[2:] == ["640", "33 %"]
    assert any("63 of them with 3 hosts" in line for line in scaling.sections(groups(runs), 2))


def test_without_one_device_of_the_framework_there_is_no_row():
    runs = [ALONE, run_of("horovod", 2, 32, 100), run_of("ddp", 2, 32, 100)]
    assert not any("DDP" in line for line in scaling.sections(groups(runs), 2))


def test_nothing_is_said_of_one_number_of_hosts():
    assert scaling.sections(groups([ALONE, run_of("horovod", 2, 64, 125)]), 2) == []


@pytest.mark.parametrize(
    "cores, said", [(2, "50 % and 50 %"), (3, "about 50 %"), (4, ""), (None, "")]
)
def test_the_text_says_which_hosts_share_a_core(cores, said):
    runs = [ALONE, run_of("horovod", 3, 64, 125), run_of("horovod", 4, 64, 400)]
    text = "\n".join(scaling.sections(groups(runs), cores))
    assert ("share a core" in text) == bool(said)
    assert said in text


def test_the_plan_measures_one_device_with_the_batch_that_others_are_compared_to():
    cells = plans.PLANS["scaling"].cells
    alone = {(cell.work, cell.batch) for cell in cells if set(plans.FLOORS) <= set(cell.systems)}
    assert ("mlp", 64) in alone
    assert {cell.hosts for cell in cells if cell.batch == 64} == {2, 3, 4}
    assert {cell.hosts for cell in cells if cell.batch == 64 // cell.hosts} == {2, 3, 4}
