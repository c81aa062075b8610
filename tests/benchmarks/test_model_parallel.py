"""The benchmark of divided models runs, and its table has a row for each of them."""

import json

import pytest

from tests.benchmarks.running import between, run
from tfdist.strategies.horovod.backend import is_installed


@pytest.mark.full
@pytest.mark.skipif(not is_installed(), reason="Horovod is not installed")
def test_the_table_has_one_device_and_what_divides_it(tmp_path):
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text(
        "before\n<!-- model_parallel:begin -->\nold\n<!-- model_parallel:end -->\nafter\n"
    )
    size = ["--width", "16", "--steps", "1", "--micro-batches", "2"]
    run("model_parallel", *size, "--update", str(page), "--json", str(result))
    rows = [line.split(" | ") for line in between(page, "model_parallel").splitlines()[4:]]
    assert [row[1] for row in rows] == [
        "one device",
        "pipeline of 2 stages, micro-batches: 2",
        "one device",
        "tensor-parallel, ranks: 2",
    ]
    whole, stage, alone, part = (
        one["largest_part_bytes"] for one in json.loads(result.read_text())
    )
    assert stage == whole / 2
    assert 0.5 < part / alone < 0.6  # biases after sums are whole
