"""The benchmark of compiled steps runs and prints what it promises; no time is asserted."""

import pytest

from tests.benchmarks.running import run
from tests.traffic import network

SIZES = ["--models", "mlp", "--width", "8", "--batch", "8", "--rounds", "1", "--steps", "1"]


def rows_of(printed):
    return [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")][2:]


@pytest.mark.full
def test_it_has_a_row_for_each_system():
    rows = rows_of(run("compiled", "--engines", "mirrored", "multi_worker", *SIZES))
    systems = ["one device", "mirrored, 2 replicas", "multi_worker, 2 replicas"]
    assert [row[1].strip() for row in rows] == systems
    assert all(float(row[3]) > 0 for row in rows)


@pytest.mark.full
@pytest.mark.skipif(bool(network.reason_against()), reason=network.reason_against())
def test_on_a_link_it_has_those_of_several_hosts():
    printed = run("compiled", "--engines", "mirrored", "multi_worker", "--rate", "1gbit", *SIZES)
    rows = rows_of(printed)
    assert [row[1].strip() for row in rows] == ["one device", "multi_worker, 2 replicas"]
    assert "whose link carries 1 Gbit/s" in printed
