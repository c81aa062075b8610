"""The benchmark of compiled steps runs and prints what it promises; no time is asserted."""

import pytest

from tests.benchmarks.running import run


@pytest.mark.full
def test_it_has_a_row_for_each_system():
    sizes = ["--width", "8", "--batch", "8", "--rounds", "1", "--steps", "1"]
    printed = run("compiled", "--engines", "mirrored", "multi_worker", "--models", "mlp", *sizes)
    rows = [line.split("|")[1:-1] for line in printed.splitlines() if line.startswith("|")][2:]
    systems = ["one device", "mirrored, 2 replicas", "multi_worker, 2 replicas"]
    assert [row[1].strip() for row in rows] == systems
    assert all(float(row[3]) > 0 for row in rows)
