"""The benchmark of a long elastic job runs; no figure of the machine is asserted."""

import json

import pytest

from tests.benchmarks.running import between, run
from tests.traffic import network


@pytest.mark.full
def test_what_a_long_job_uses_is_noted_after_each_fit(tmp_path):
    if reason := network.reason_against():
        pytest.skip(reason)
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    page.write_text("before\n<!-- soak:begin -->\n<!-- soak:end -->\nafter\n")
    options = ["--engines", "multi_worker", "--fits", "2", "--steps", "20", "--often", "15"]
    printed = run("soak", *options, "--json", str(result), "--update", str(page))
    (found,) = json.loads(result.read_text()).values()
    assert [one["recoveries"] for one in found] == [1, 2]
    assert found[0]["launcher"]["descriptors"] > 0
    assert printed.endswith(between(page, "soak"))
