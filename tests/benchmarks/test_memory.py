"""`python -m benchmarks.memory`, with one small batch."""

import json

import pytest

from tests.benchmarks.running import run


@pytest.mark.full
def test_estimates_stand_beside_what_was_measured(tmp_path):
    measured = tmp_path / "measured.json"
    options = ["--models", "mlp", "--batch-sizes", "512", "--rounds", "1", "--json", str(measured)]
    printed = run("memory", *options)
    assert "| Six Dense layers of 1536 units | 512 |" in printed
    cells = {
        (name, samples): results for name, samples, results in json.loads(measured.read_text())
    }
    assert set(cells) == {("mlp", 1), ("mlp", 512)}
    (result,) = cells["mlp", 512]
    assert 0.4 * result["measured"] < result["estimated"] < 2 * result["measured"]
