"""The benchmark of more workers and more parameter servers runs; no time is asserted."""

import pytest

from tests.benchmarks.running import between, run
from tests.traffic import network

TINY = ["--systems", "tfdist", "--rounds", "1", "--pause", "0.5", "--width", "8", "--hosts", "1"]


@pytest.mark.full
def test_tables_are_written(tmp_path):
    if reason := network.reason_against():
        pytest.skip(reason)
    page = tmp_path / "page.md"
    name = "parameter-server-scaling"
    page.write_text(f"before\n<!-- {name}:begin -->\nold\n<!-- {name}:end -->\nafter\n")
    counts = ["--workers", "1", "--servers", "1", "2", "--rate", "1gbit"]
    run("parameter_server_scaling", *TINY, *counts, "--update", str(page))
    rows = [line for line in between(page, name).splitlines() if line.startswith("| ")]
    assert [row.split("|")[1].strip() for row in rows] == ["workers", "1", "servers", "1", "2"]
